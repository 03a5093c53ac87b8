package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// RecipeVersion is the only recipe version that this build reads.
const RecipeVersion = "bulkhead/image/v1"

// maxRecipeFile bounds a recipe, its lock file and each of its files.
const maxRecipeFile = 16 << 20

// Recipe says what an image consists of. Together with [Recipe.Lock] and the
// contents of Files it is complete: it travels to the fetcher as JSON.
type Recipe struct {
	APIVersion string            `json:"apiVersion" yaml:"apiVersion"`
	Name       string            `json:"name" yaml:"name"`
	Debian     []string          `json:"debian,omitempty" yaml:"debian"` // package names; what they depend on comes along
	NPM        *NPM              `json:"npm,omitempty" yaml:"npm"`
	Files      []File            `json:"files,omitempty" yaml:"files"`
	Links      map[string]string `json:"links,omitempty" yaml:"links"` // absolute path -> target
}

// NPM lists packages of the npm registry that this host is configured with.
// They go to /opt/npm/node_modules.
type NPM struct {
	Packages []string `json:"packages" yaml:"packages"` // name@exact.version
	Lock     string   `json:"lock" yaml:"lock"`         // file beside the recipe
	Scripts  Scripts  `json:"scripts" yaml:"scripts"`   // whose install scripts are run

	// LockText is the content of Lock.
	LockText string `json:"lockText,omitempty" yaml:"-"`
}

// File is one file to add.
type File struct {
	Path string `json:"path" yaml:"path"`           // absolute, inside
	Mode string `json:"mode,omitempty" yaml:"mode"` // octal; default 0644
	Text string `json:"text,omitempty" yaml:"text"`
	From string `json:"from,omitempty" yaml:"from"` // file beside the recipe, instead of Text

	// Content is the content of From, or Text.
	Content []byte `json:"content,omitempty" yaml:"-"`
}

var (
	nameRE    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	debianRE  = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`) // Debian policy 5.6.1
	npmRE     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$`)
	modeRE    = regexp.MustCompile(`^0?[0-7]{3}$`)
	errNoRoom = fmt.Errorf("is larger than %d bytes", maxRecipeFile)
)

// CheckName says what is wrong with an image name.
func CheckName(name string) error {
	if !nameRE.MatchString(name) {
		return fmt.Errorf("image name %q: use 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", name)
	}
	return nil
}

// ReadRecipe reads a recipe with everything that it names beside it.
func ReadRecipe(file string) (*Recipe, error) {
	text, err := readBounded(file)
	if err != nil {
		return nil, fmt.Errorf("recipe: %w", err)
	}
	r, err := ParseRecipe(text)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", file, err)
	}
	dir := filepath.Dir(file)
	if r.NPM != nil {
		lock, err := readBounded(filepath.Join(dir, r.NPM.Lock))
		if err != nil {
			return nil, fmt.Errorf("recipe %s: npm.lock: %w (make it with: npm install --package-lock-only --omit-lockfile-registry-resolved)", file, err)
		}
		r.NPM.LockText = string(lock)
	}
	for i := range r.Files {
		f := &r.Files[i]
		f.Content = []byte(f.Text)
		if f.From != "" {
			if f.Content, err = readBounded(filepath.Join(dir, f.From)); err != nil {
				return nil, fmt.Errorf("recipe %s: files[%d]: %w", file, i, err)
			}
		}
	}
	return r, nil
}

// ParseRecipe reads a recipe's text. All faults are reported at once.
func ParseRecipe(text []byte) (*Recipe, error) {
	r, err := decodeRecipe(text)
	if err != nil {
		return nil, fmt.Errorf("not a recipe: %w", err)
	}
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf(format, a...)) }
	if r.APIVersion != RecipeVersion {
		fault("apiVersion is %q, this build reads %q", r.APIVersion, RecipeVersion)
	}
	if err := CheckName(r.Name); err != nil {
		faults = append(faults, err)
	}
	if len(r.Debian) == 0 && r.NPM == nil && len(r.Files) == 0 {
		fault("the recipe is empty: list debian, npm or files")
	}
	for i, p := range r.Debian {
		if !debianRE.MatchString(p) {
			fault("debian[%d]: %q is not a package name", i, p)
		}
	}
	if r.NPM != nil {
		if len(r.NPM.Packages) == 0 {
			fault("npm.packages is empty")
		}
		for i, p := range r.NPM.Packages {
			if !npmRE.MatchString(p) {
				fault("npm.packages[%d]: %q is not name@1.2.3: an exact version is needed", i, p)
			}
		}
		faults = append(faults, r.NPM.Scripts.faults()...)
		if !isLocal(r.NPM.Lock) {
			fault("npm.lock: %q is not a file beside the recipe", r.NPM.Lock)
		}
	}
	for i, f := range r.Files {
		if err := checkInside(f.Path); err != nil {
			fault("files[%d].path: %w", i, err)
		}
		if f.Mode != "" && !modeRE.MatchString(f.Mode) {
			fault("files[%d].mode: %q is not three octal digits such as 0644", i, f.Mode)
		}
		if f.From != "" && (f.Text != "" || !isLocal(f.From)) {
			fault("files[%d]: give text, or from with a file beside the recipe", i)
		}
	}
	for p := range r.Links {
		if err := checkInside(p); err != nil {
			fault("links: %w", err)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return r, nil
}

// decodeRecipe reads the YAML. The library panics on some texts
// (testdata/fuzz/FuzzParseRecipe); to the operator that is bad input as well.
func decodeRecipe(text []byte) (r *Recipe, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("the YAML reader gave up: %v", p)
		}
	}()
	r = &Recipe{}
	if err := yaml.UnmarshalWithOptions(text, r, yaml.Strict()); err != nil {
		return nil, err
	}
	return r, nil
}

// Digest names what the recipe asks for, contents of its files included.
func (r *Recipe) Digest() (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("recipe digest: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// linkPaths are the paths of Links, in a stable order.
func (r *Recipe) linkPaths() []string {
	paths := make([]string, 0, len(r.Links))
	for p := range r.Links {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}

func checkInside(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%q is not a clean absolute path such as /etc/motd", p)
	}
	return nil
}

// isLocal says whether a path stays beside the recipe, by its text.
func isLocal(p string) bool { return filepath.IsLocal(p) && !strings.ContainsRune(p, 0) }

func readBounded(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	if info.Size() > maxRecipeFile {
		return nil, fmt.Errorf("%s %w", file, errNoRoom)
	}
	return os.ReadFile(file) // #nosec G304 -- the operator's own recipe
}
