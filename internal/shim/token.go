package shim

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bulkhead/internal/tooltoken"
	"bulkhead/internal/wire"
)

// writeToken leaves the tools' token for the processes of this container. Its
// folder lies in the container's own memory; whoever has the runtime's id in
// here may read it, which is what it is for.
func (s *shim) writeToken() error {
	path := s.cfg.TokenFile
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the token's file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400) // #nosec G304 -- from the configuration
	if err != nil {
		return fmt.Errorf("the token's file: %w", err)
	}
	_, err = f.WriteString(tooltoken.Of(s.cfg.Token) + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("the token's file: %w", err)
	}
	s.env = s.with([]string{wire.EnvTokenFile + "=" + path, wire.EnvGatewaySocket + "=" + s.cfg.GatewaySocket})
	return nil
}
