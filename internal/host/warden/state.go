package warden

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/host/tree"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// stateVersion is the version of both state files.
const stateVersion = 1

// teamState is what must survive a reboot beside the manifest:
// <State>/teams/<team>/state.json. It is written after the ledger and before
// anything that it describes is made.
type teamState struct {
	Version int `json:"version"`
	// Accepted are layers that the operator agreed to run without.
	Accepted []string              `json:"accepted,omitempty"`
	Agents   map[string]agentState `json:"agents"`
	// Removing is set by down before it begins, so that a crash in the middle
	// goes on removing instead of starting the team again.
	Removing bool `json:"removing,omitempty"`
	// Source is where the manifest came from; relative paths start there.
	Source string `json:"source"`
	// Presets are what the manifest's presets stood for when it was applied.
	Presets map[string][]string `json:"presets,omitempty"`
}

type agentState struct {
	Dialer  uint32 `json:"dialer"`            // host id from the system block
	Stopped bool   `json:"stopped,omitempty"` // by `bulkhead stop`
}

// runState is what is true of an agent's processes now:
// <Run>/teams/<team>/<agent>/state.json, gone after a reboot with them.
type runState struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"` // of everything that the running containers were made from
	Build   string `json:"build"`  // of the programs they run
	Token   string `json:"token"`  // the runtime's, towards its gateway
	Dialer  int    `json:"dialer"` // pid on the host; believed only with its start time
	Started uint64 `json:"started"`
}

func readJSON(path string, into any) (bool, error) {
	raw, err := os.ReadFile(path) // #nosec G304 -- root's own file below a root-owned folder
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("warden: read state: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("warden: %s is not readable state: %w", path, err)
	}
	return true, nil
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("warden: encode state: %w", err)
	}
	return tree.WriteFile(path, append(raw, '\n'), 0o600, 0)
}

func teamStatePath(h layout.Host, name string) string {
	return filepath.Join(h.Team(name), "state.json")
}

func runStatePath(a layout.Agent) string { return filepath.Join(a.Run, "state.json") }

// loadTeam reads a team as it was last applied. ok is false when there is none.
func loadTeam(h layout.Host, name string) (m *team.Manifest, raw []byte, st teamState, ok bool, err error) {
	if ok, err = readJSON(teamStatePath(h, name), &st); err != nil || !ok {
		return nil, nil, st, false, err
	}
	if st.Version != stateVersion {
		return nil, nil, st, false, fmt.Errorf("warden: state of team %s has version %d, this build reads %d", name, st.Version, stateVersion)
	}
	raw, err = os.ReadFile(h.Manifest(name)) // #nosec G304 -- root's own file
	if err != nil {
		return nil, nil, st, false, fmt.Errorf("warden: team %s: %w", name, err)
	}
	if m, err = team.ParseWith(st.Source, raw, st.Presets); err != nil {
		return nil, nil, st, false, fmt.Errorf("warden: the manifest in force for team %s does not parse any more: %w", name, err)
	}
	return m, raw, st, true, nil
}
