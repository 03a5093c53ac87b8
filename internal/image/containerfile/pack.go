package containerfile

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/image"
)

// Entries of the tar that [Pack] writes, in this order.
const (
	planEntry = "plan"
	baseEntry = "base" // absent for scratch
	copyEntry = "copy" // one for each COPY, in order
)

// request is the plan entry.
type request struct {
	Plan   Plan         `json:"plan"`
	Single []bool       `json:"single"` // by COPY: one file, which the destination may name
	Limits image.Limits `json:"limits"`
}

// Pack writes what [Build] needs. base is the base's tree, or, for one that
// was pulled, its layers as a file; both may be nil for scratch. dir is the
// context.
func Pack(out io.Writer, p *Plan, dir *os.Root, base *os.Root, layers *os.File, limits image.Limits) error {
	w := &packer{out: tar.NewWriter(out)}
	defer w.remove()
	omit, err := readIgnore(dir)
	if err != nil {
		return err
	}
	req := request{Plan: *p, Limits: limits}
	var files []*os.File
	var faults []error
	for _, s := range p.Steps {
		if s.Kind != KindCopy {
			continue
		}
		f, err := w.temporary()
		if err != nil {
			return err
		}
		single, err := copySources(f, dir, omit, s.Sources)
		if err != nil {
			faults = append(faults, fmt.Errorf("line %d: COPY: %w", s.Line, err))
		}
		files, req.Single = append(files, f), append(req.Single, single)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	text, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if err := w.out.WriteHeader(&tar.Header{Name: planEntry, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	if _, err := w.out.Write(text); err != nil {
		return err
	}
	if base != nil {
		if layers, err = w.temporary(); err != nil {
			return err
		}
		if err := flat(layers, base); err != nil {
			return fmt.Errorf("base: %w", err)
		}
	}
	if layers != nil {
		if err := w.add(baseEntry, layers); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := w.add(copyEntry, f); err != nil {
			return err
		}
	}
	return w.out.Close()
}

type packer struct {
	out *tar.Writer
	tmp []*os.File
}

func (w *packer) temporary() (*os.File, error) {
	f, err := os.CreateTemp("/var/tmp", "bulkhead-pack-")
	if err != nil {
		return nil, err
	}
	w.tmp = append(w.tmp, f)
	return f, os.Remove(f.Name()) // lives on as the open file
}

func (w *packer) remove() {
	for _, f := range w.tmp {
		_ = f.Close()
	}
}

func (w *packer) add(name string, f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := w.out.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: size}); err != nil {
		return err
	}
	_, err = io.Copy(w.out, f)
	return err
}

func unknown(name string, mode fs.FileMode) error {
	return fmt.Errorf("%s is neither file, folder nor link (%s)", name, mode.Type())
}

// flat writes a whole tree.
func flat(out io.Writer, root *os.Root) error {
	t := &tree{out: tar.NewWriter(out), root: root, odd: unknown, seen: map[inode]string{}}
	if err := t.below("."); err != nil {
		return err
	}
	return t.out.Close()
}

// copySources writes the sources of one COPY, under the names that they get
// below the destination. Links of the context are followed for a source
// itself, never out of the context; below a folder they stay links.
func copySources(out io.Writer, dir *os.Root, omit ignored, sources []string) (single bool, err error) {
	t := &tree{out: tar.NewWriter(out), root: dir, skip: omit.match, odd: unknown}
	n, folders := 0, 0
	var faults []error
	for _, source := range sources {
		names, err := named(dir, source)
		if err != nil {
			return false, err
		}
		names = slices.DeleteFunc(names, t.skips)
		if len(names) == 0 {
			faults = append(faults, fmt.Errorf("%s is not in the context %s, or is left out by its ignore file", source, dir.Name()))
		}
		for _, name := range names {
			info, err := dir.Stat(name)
			if err != nil {
				faults = append(faults, fmt.Errorf("%w (the context is %s, and links out of it are not followed)", err, dir.Name()))
				continue
			}
			n++
			switch {
			case info.IsDir():
				folders++
				err = t.below(name)
			case info.Mode().IsRegular():
				err = t.file(dir, name, &tar.Header{Name: path.Base(name), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}, info)
			default:
				err = unknown(name, info.Mode())
			}
			if err != nil {
				faults = append(faults, err)
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return false, err
	}
	return n == 1 && folders == 0, t.out.Close()
}

// named gives the names that a source stands for, which may be none.
func named(dir *os.Root, source string) ([]string, error) {
	if strings.ContainsAny(source, `*?[\`) {
		return fs.Glob(dir.FS(), source)
	}
	if _, err := dir.Lstat(source); err != nil {
		return nil, nil //nolint:nilerr // the caller says which one is missing
	}
	return []string{source}, nil
}
