package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

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

// Tasks is where tasks lie. What returned is durable. Its methods may be called
// concurrently.
type Tasks interface {
	All(ctx context.Context) ([]Task, error)
	// Put adds a task, or replaces the one of its id.
	Put(ctx context.Context, t Task) error
	// Delete takes one away; that it is not there is no error.
	Delete(ctx context.Context, id string) error
}

// FileTasks keeps tasks in one file, which is replaced as a whole.
type FileTasks struct {
	path string
	mu   sync.Mutex
}

// maxTaskFile bounds the file that is read.
const maxTaskFile = maxTasks * (maxTaskInput + 64<<10)

// NewFileTasks keeps tasks at path; the file need not exist yet.
func NewFileTasks(path string) *FileTasks { return &FileTasks{path: path} }

// All gives every task.
func (f *FileTasks) All(context.Context) ([]Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read()
}

func (f *FileTasks) read() ([]Task, error) {
	st, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("proc: tasks: %w", err)
	}
	if st.Size() > maxTaskFile {
		return nil, fmt.Errorf("proc: tasks: %s has %d bytes; it was not written by this program", f.path, st.Size())
	}
	raw, err := os.ReadFile(f.path)
	if err != nil {
		return nil, fmt.Errorf("proc: tasks: %w", err)
	}
	var out []Task
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("proc: tasks: %s: %w", f.path, err)
	}
	return out, nil
}

// Put adds or replaces one.
func (f *FileTasks) Put(_ context.Context, t Task) error {
	return f.change(func(list []Task) []Task {
		if i := slices.IndexFunc(list, func(o Task) bool { return o.ID == t.ID }); i >= 0 {
			list[i] = t
			return list
		}
		return append(list, t)
	})
}

// Delete takes one away.
func (f *FileTasks) Delete(_ context.Context, id string) error {
	return f.change(func(list []Task) []Task { return slices.DeleteFunc(list, func(o Task) bool { return o.ID == id }) })
}

func (f *FileTasks) change(how func([]Task) []Task) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, err := f.read()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(how(list))
	if err != nil {
		return fmt.Errorf("proc: tasks: %w", err)
	}
	if err := renameio.WriteFile(f.path, raw, 0o600); err != nil {
		return fmt.Errorf("proc: tasks: %w", err)
	}
	return nil
}
