package containerfile

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/image"
)

// StepArg is the argument that makes the program be a RUN step, see [RunStep].
const StepArg = "step"

// treeDir is the tree that is built, in the working folder.
const treeDir = "tree"

// builder is the unprivileged process.
type builder struct {
	in     *tar.Reader
	log    io.Writer
	root   *os.Root
	limits image.Limits
	single []bool // of the COPY steps that are still to come
}

// Build carries out what [Pack] wrote and answers with the tree as a tar. It
// works in the current folder, which must be empty and its own. It must be user
// 0 of a user namespace in which it is nobody outside, and of mount and PID
// namespaces of its own, and refuses anything else.
func Build(ctx context.Context, in io.Reader, out, log io.Writer) error {
	if err := nobodyOutside(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	if err := image.NoNewPrivileges(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	if err := os.Mkdir(treeDir, 0o755); err != nil { // #nosec G301 -- the image's "/"
		return fmt.Errorf("build: %w", err)
	}
	root, err := os.OpenRoot(treeDir)
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	defer func() { _ = root.Close() }()
	b := &builder{in: tar.NewReader(in), log: log, root: root}
	if err := b.steps(ctx); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	if err := b.answer(out); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	return nil
}

// nobodyOutside refuses to be root, or to be somebody, outside of the namespace.
func nobodyOutside() error {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	f := strings.Fields(string(text))
	if os.Geteuid() != 0 || len(f) != 3 || f[0] != "0" || f[1] != fmt.Sprint(image.StepsID) {
		return fmt.Errorf("runs only as user 0 of a namespace whose ids own nothing outside (the map is %q)", f)
	}
	return nil
}

func (b *builder) next(want string) error {
	h, err := b.in.Next()
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if h.Name != want {
		return fmt.Errorf("request: %q where %s should be", h.Name, want)
	}
	return nil
}

func (b *builder) steps(ctx context.Context) error {
	if err := b.next(planEntry); err != nil {
		return err
	}
	var req request
	if err := json.NewDecoder(b.in).Decode(&req); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	b.limits, b.single = req.Limits, req.Single
	if req.Plan.Base != Scratch {
		if err := b.next(baseEntry); err != nil {
			return err
		}
		lay := image.Unpack
		if req.Plan.Pulled() {
			lay = image.UnpackLayers
		}
		if err := lay(b.root, b.in, b.limits); err != nil {
			return err
		}
	}
	for i, s := range req.Plan.Steps {
		_, _ = fmt.Fprintf(b.log, "[%d/%d] %s\n", i+1, len(req.Plan.Steps), s.Text)
		var err error
		switch s.Kind {
		case KindWorkdir:
			err = b.root.MkdirAll(inside(s.Dir), 0o755)
		case KindCopy:
			err = b.copy(s)
		case KindRun:
			err = b.run(ctx, s)
		default:
			err = errors.New("an unknown step")
		}
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", s.Line, s.Kind, err)
		}
	}
	return nil
}

// inside gives an absolute path of the image as os.Root takes it.
func inside(p string) string {
	if p = strings.TrimPrefix(path.Clean(p), "/"); p != "" {
		return p
	}
	return "."
}

// copy lays the files of a COPY, by the importer's rules, which never follow a
// link out of the tree.
func (b *builder) copy(s Step) error {
	if err := b.next(copyEntry); err != nil {
		return err
	}
	if len(b.single) == 0 {
		return errors.New("request: more COPY steps than it says")
	}
	single := b.single[0]
	b.single = b.single[1:]
	dest, name := inside(s.Dest), ""
	if info, err := b.root.Stat(dest); single && !s.Folder && (err != nil || !info.IsDir()) {
		dest, name = path.Dir(dest), path.Base(dest)
	}
	if err := b.root.MkdirAll(dest, 0o755); err != nil {
		return err
	}
	sub, err := b.root.OpenRoot(dest)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	if name == "" {
		return image.Unpack(sub, b.in, b.limits)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(renamed(w, b.in, name)) }() // ends with r
	return errors.Join(image.Unpack(sub, r, b.limits), r.Close())
}

// renamed writes a tar of one file with the file's name changed.
func renamed(out io.Writer, in io.Reader, name string) error {
	r, w := tar.NewReader(in), tar.NewWriter(out)
	h, err := r.Next()
	if err != nil {
		return err
	}
	h.Name = name
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil { // #nosec G110 -- bounded by the reader at the other end
		return err
	}
	return w.Close()
}

// run runs one step and waits for it; the kernel ends with it whatever it left
// running.
func (b *builder) run(ctx context.Context, s Step) error {
	if err := image.MountPoints(b.root); err != nil { // real folders, no links
		return err
	}
	if err := b.root.MkdirAll(inside(s.Dir), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} {
		if v := os.Getenv(name); v != "" {
			s.Env = append(s.Env, name+"="+v)
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", StepArg) // #nosec G204 -- this program
	cmd.Dir, cmd.Env = treeDir, []string{}
	cmd.Stdout, cmd.Stderr = b.log, b.log
	cmd.ExtraFiles = []*os.File{r}
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	_, err = w.Write(text)
	return errors.Join(err, w.Close(), cmd.Wait())
}

// answer writes the tree.
func (b *builder) answer(out io.Writer) error {
	if err := b.root.RemoveAll("dev"); err != nil { // made for the steps alone
		return err
	}
	odd := func(name string, mode fs.FileMode) error {
		if mode&fs.ModeSocket == 0 {
			return unknown("/"+name, mode)
		}
		_, err := fmt.Fprintf(b.log, "left out: the socket /%s\n", name)
		return err
	}
	t := &tree{out: tar.NewWriter(out), root: b.root, odd: odd, seen: map[inode]string{}}
	if err := t.below("."); err != nil {
		return err
	}
	return t.out.Close()
}
