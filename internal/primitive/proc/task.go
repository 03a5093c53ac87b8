package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bulkhead/internal/record"
	"bulkhead/internal/sqlite"
	"bulkhead/internal/store"
	"bulkhead/internal/tool"
)

// Task is a tool that is called when its time comes.
type Task struct {
	ID         string          `json:"taskId"`
	Expression string          `json:"expression"`
	Tool       string          `json:"tool"`
	Input      json.RawMessage `json:"input,omitempty"`
	Owner      tool.Caller     `json:"owner"` // as whom it is called
	Created    time.Time       `json:"created"`
	// Last is the time, as the expression has it, that was used last; zero: none.
	Last time.Time `json:"last,omitzero"`
	// Runs counts the calls, Failed those that were refused or failed.
	Runs   int64 `json:"runs"`
	Failed int64 `json:"failed"`
}

// Tasks is where tasks lie: the agent's system.db. What returned is durable.
type Tasks struct{ store *store.Store }

// OpenTasks makes the table. Tasks of the file that earlier builds kept at
// former are taken over, after which there is no such file.
func OpenTasks(ctx context.Context, s *store.Store, former string) (*Tasks, error) {
	t := &Tasks{s}
	if err := s.Migrate(ctx, "proc", [][]string{{
		`CREATE TABLE task (
			id   TEXT PRIMARY KEY,
			body BLOB NOT NULL -- JSON
		) STRICT, WITHOUT ROWID`,
	}}); err != nil {
		return nil, err
	}
	if former == "" {
		return t, nil
	}
	return t, t.takeOver(ctx, former)
}

// maxTaskFile bounds the file that is read.
const maxTaskFile = maxTasks * (maxTaskInput + 64<<10)

// takeOver moves what a former file holds. It is removed once that is on disk:
// after a crash in between it is read again, and what is there already stays.
func (t *Tasks) takeOver(ctx context.Context, path string) error {
	list, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("proc: tasks of an earlier build: %w; move the file away to go on without them", err)
	}
	err = t.store.Update(ctx, func(x *store.Tx) error {
		for _, one := range list {
			if err := put(x, "INSERT OR IGNORE INTO task (id, body) VALUES (?, ?)", one); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("proc: tasks of an earlier build: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func readFile(path string) ([]Task, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxTaskFile {
		return nil, fmt.Errorf("%s has %d bytes, and was not written by this program", path, st.Size())
	}
	raw, err := os.ReadFile(path) // #nosec G304 -- the gateway's own folder
	if err != nil {
		return nil, err
	}
	var out []Task
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	seen := map[string]bool{}
	for _, one := range out {
		if one.ID == "" || seen[one.ID] {
			return nil, fmt.Errorf("%s: task %.40q has no id of its own", path, one.ID)
		}
		seen[one.ID] = true
	}
	return out, nil
}

// All gives every task, by its id.
func (t *Tasks) All(ctx context.Context) ([]Task, error) {
	var out []Task
	err := t.store.View(ctx, func(x *store.Tx) error {
		return x.Query("SELECT body FROM task ORDER BY id", func(row []sqlite.Value) error {
			var one Task
			if err := json.Unmarshal(sqlite.Blob(row[0]), &one); err != nil {
				return fmt.Errorf("proc: a task does not decode: %w", err)
			}
			out = append(out, one)
			return nil
		})
	})
	return out, err
}

// Put adds a task, or replaces the one of its id, together with a record of the
// call that does; nil: none.
func (t *Tasks) Put(ctx context.Context, one Task, by *record.Record) error {
	return t.store.Update(ctx, func(x *store.Tx) error {
		if by != nil {
			x.Record(*by)
		}
		return put(x, "INSERT INTO task (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body", one)
	})
}

func put(x *store.Tx, sql string, one Task) error {
	raw, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("proc: task: %w", err)
	}
	_, err = x.Exec(sql, one.ID, raw)
	return err
}

// Update changes a task that is there still.
func (t *Tasks) Update(ctx context.Context, id string, change func(*Task)) error {
	return t.store.Update(ctx, func(x *store.Tx) error {
		var one Task
		there := false
		if err := x.Query("SELECT body FROM task WHERE id = ?", func(row []sqlite.Value) error {
			there = true
			return json.Unmarshal(sqlite.Blob(row[0]), &one)
		}, id); err != nil || !there {
			return err
		}
		change(&one)
		return put(x, "UPDATE task SET body = ?2 WHERE id = ?1", one)
	})
}

// Delete takes one away; that it is not there is no error.
func (t *Tasks) Delete(ctx context.Context, id string, by *record.Record) error {
	return t.store.Update(ctx, func(x *store.Tx) error {
		if by != nil {
			x.Record(*by)
		}
		_, err := x.Exec("DELETE FROM task WHERE id = ?", id)
		return err
	})
}
