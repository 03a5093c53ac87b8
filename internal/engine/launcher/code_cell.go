package launcher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/engine"
)

// codeCell is a container whose interpreter waits for its code. Each runs one
// piece and ends with it.
type codeCell struct {
	c                     *container
	stdin, stdout, stderr *os.File // our ends
	once                  sync.Once
}

// start makes one.
func (s *codeServer) start(ctx context.Context, language string) (_ *codeCell, err error) {
	var mine, theirs [3]*os.File
	defer func() {
		closeAll(theirs[:])
		if err != nil {
			closeAll(mine[:])
		}
	}()
	for i := range mine {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("launcher: code: pipe: %w", err)
		}
		mine[i], theirs[i] = r, w
		if i == 0 {
			mine[i], theirs[i] = w, r
		}
	}
	spec := s.cfg.Spec
	if err := own(theirs[:], &spec); err != nil {
		return nil, err
	}
	spec.Name = CodePrefix + strings.ToLower(rand.Text()[:12])
	spec.Cgroup = filepath.Join(spec.Team, spec.Agent, spec.Name)
	spec.Command = interpreters[language].command
	c, err := s.all.launch(ctx, LaunchRequest{Spec: spec, Stdio: true, Wait: true}, theirs[:])
	if err != nil {
		return nil, fmt.Errorf("launcher: code: the image cannot run %s: %w", language, err)
	}
	return &codeCell{c: c, stdin: mine[0], stdout: mine[1], stderr: mine[2]}, nil
}

// own makes the cell's user the owner of its pipes, so that it may open them
// again by their names in /dev.
func own(pipes []*os.File, s *engine.Spec) error {
	id := s.User.ID
	for _, m := range s.User.Map {
		if m.Inside == s.User.ID {
			id = m.Host
		}
	}
	for _, f := range pipes {
		if err := f.Chown(int(id), int(id)); err != nil {
			return fmt.Errorf("launcher: code: pipe: %w", err)
		}
	}
	return nil
}

// give passes the code. One that does not read it ends without it.
func (c *codeCell) give(code string) {
	_, _ = c.stdin.WriteString(code)
	_ = c.stdin.Close()
}

func (c *codeCell) closeOutput() { _, _ = c.stdout.Close(), c.stderr.Close() }

// kill ends every process of the cell and returns when none is left.
func (c *codeCell) kill() error {
	err := c.c.proc.Kill()
	_ = c.stdin.Close() // who still writes to it is done
	<-c.c.proc.Done()
	return err
}

// release lets what is left of an ended cell be taken away.
func (c *codeCell) release() {
	c.once.Do(func() {
		_ = c.stdin.Close()
		c.closeOutput()
		close(c.c.answered)
	})
}

// take gives a cell that waits already, or makes one.
func (s *codeServer) take(ctx context.Context, language string) (*codeCell, error) {
	for {
		s.mu.Lock()
		ready := s.warm[language]
		if len(ready) == 0 {
			s.mu.Unlock()
			return s.start(ctx, language)
		}
		c := ready[0]
		s.warm[language] = ready[1:]
		s.mu.Unlock()
		select {
		case <-c.c.proc.Done(): // killed from outside, or for memory
			c.release()
		default:
			return c, nil
		}
	}
}

// refill starts interpreters of a language until as many wait as should, in the
// background, a moment after the run that took one.
func (s *codeServer) refill(language string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.idle[language] == nil {
		s.idle[language] = time.AfterFunc(warmTime, func() { s.cool(language) })
	}
	s.idle[language].Reset(warmTime)
	if s.making[language] > 0 {
		return
	}
	s.making[language] = 1
	s.wg.Go(func() {
		time.Sleep(refillDelay)
		for s.lacks(language) {
			c, err := s.start(context.Background(), language)
			if err != nil {
				fmt.Fprintln(os.Stderr, "bulkhead launcher:", err) // the next run is made fresh and says what is wrong
				s.mu.Lock()
				s.making[language] = 0
				s.mu.Unlock()
				return
			}
			s.keep(language, c)
		}
	})
}

// lacks says whether one more is wanted; when not, nobody is making any.
func (s *codeServer) lacks(language string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.warm[language]) >= interpreters[language].warm {
		s.making[language] = 0
		return false
	}
	return true
}

func (s *codeServer) keep(language string, c *codeCell) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.warm[language] = append(s.warm[language], c)
	}
	s.mu.Unlock()
	if closed {
		s.discard(c)
	}
}

// cool ends the interpreters of a language that wait.
func (s *codeServer) cool(language string) {
	s.mu.Lock()
	old := s.warm[language]
	s.warm[language] = nil
	s.mu.Unlock()
	for _, c := range old {
		s.discard(c)
	}
}

func (s *codeServer) discard(c *codeCell) {
	if err := c.kill(); err != nil && !errors.Is(err, os.ErrClosed) {
		fmt.Fprintln(os.Stderr, "bulkhead launcher: discard a cell for code:", err)
	}
	c.release()
}
