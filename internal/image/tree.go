package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// Mount points that containers need in a read-only root. Folders first; files
// are empty and get the agent's own content mounted over them. The last two
// are what rootless Podman wants to find.
var (
	mountDirs  = []string{"proc", "sys", "dev", "tmp", "run", "workspace", "home/agent", ".bulkhead", "run/secrets"}
	mountFiles = []string{"etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group", "etc/hostname", "run/.containerenv"}
)

// mountPoints makes what is missing and replaces links: a mount over a link
// would land where the link points.
func mountPoints(root *os.Root) error {
	for _, d := range mountDirs {
		if err := makeDirs(root, d); err != nil {
			return err
		}
	}
	if err := makeDirs(root, "etc"); err != nil {
		return err
	}
	for _, f := range mountFiles {
		info, err := root.Lstat(f)
		if err == nil && info.Mode().IsRegular() {
			continue
		}
		if err == nil {
			if err := root.RemoveAll(f); err != nil {
				return fmt.Errorf("image: mount point /%s: %w", f, err)
			}
		}
		if err := root.WriteFile(f, nil, 0o644); err != nil {
			return fmt.Errorf("image: mount point /%s: %w", f, err)
		}
	}
	if err := root.RemoveAll("etc/mtab"); err != nil {
		return fmt.Errorf("image: /etc/mtab: %w", err)
	}
	if err := root.Symlink("../proc/self/mounts", "etc/mtab"); err != nil {
		return fmt.Errorf("image: /etc/mtab: %w", err)
	}
	return nil
}

// MountPoints makes what containers need in a root, see mountDirs.
func MountPoints(root *os.Root) error { return mountPoints(root) }

// makeDirs makes a folder and its parents, each of them a real folder.
func makeDirs(root *os.Root, dir string) error {
	if parent := path.Dir(dir); parent != "." {
		if err := makeDirs(root, parent); err != nil {
			return err
		}
	}
	info, err := root.Lstat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		if err := root.Remove(dir); err != nil {
			return fmt.Errorf("image: mount point /%s: %w", dir, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("image: mount point /%s: %w", dir, err)
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("image: mount point /%s: %w", dir, err)
	}
	return nil
}

// treeDigest gives the digest of a tree, see the package comment.
func treeDigest(root *os.Root) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		kind, content := "d", ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			kind = "l"
			target, err := root.Readlink(p)
			if err != nil {
				return err
			}
			h := sha256.Sum256([]byte(target))
			content = hex.EncodeToString(h[:])
		case info.Mode().IsRegular():
			kind = "f"
			if content, err = fileDigest(root, p); err != nil {
				return err
			}
		case !info.IsDir():
			return fmt.Errorf("%s is neither file, folder nor link", p)
		}
		mode := info.Mode().Perm()
		if kind == "l" {
			mode = 0o777
		}
		_, err = fmt.Fprintf(sum, "%s %04o %q %s\n", kind, mode, p, content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("image: digest: %w", err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

func fileDigest(root *os.Root, p string) (string, error) {
	f, err := root.Open(p)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
