package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"bulkhead/internal/execution"
	"bulkhead/internal/primitive/db"
	"bulkhead/internal/primitive/fs"
	"bulkhead/internal/primitive/storage"
)

// Where files and SQL lie, in Config.Data.
const (
	filesDir = "fs"
	sqlFile  = "agent.db"
)

// budget is what fs and db may take together.
func (m *means) budget() *storage.Budget {
	if m.storage == nil {
		m.storage = storage.New(storage.DefaultLimits(m.cfg.Tools.WithDefaults().StorageBytes))
	}
	return m.storage
}

func openFiles(_ context.Context, m *means) (group, error) {
	path := filepath.Join(m.cfg.Data, filesDir)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return group{}, fmt.Errorf("files: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return group{}, fmt.Errorf("files: %w", err)
	}
	s, err := fs.Open(fs.Config{Dir: dir, Budget: m.budget(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return group{}, errors.Join(err, dir.Close())
	}
	u := execution.Undoer{Outside: s.Undo}
	return group{
		tools: s.Tools(), close: func() error { return errors.Join(s.Close(), dir.Close()) },
		undo: map[string]execution.Undoer{"fs_write": u, "fs_delete": u, "fs_mkdir": u},
	}, nil
}

func openSQL(_ context.Context, m *means) (group, error) {
	s, err := db.Open(db.Config{Path: filepath.Join(m.cfg.Data, sqlFile), Budget: m.budget(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return group{}, err
	}
	undo := map[string]execution.Undoer{}
	for _, t := range s.Tools() {
		undo[t.Name] = execution.Undoer{Outside: s.Undo}
	}
	return group{tools: s.Tools(), close: s.Close, undo: undo}, nil
}
