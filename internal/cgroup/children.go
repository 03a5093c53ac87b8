package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Children names the groups directly below this one. A group that does not
// exist has none.
func (g *Group) Children() ([]string, error) {
	entries, err := os.ReadDir(g.folders()[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
