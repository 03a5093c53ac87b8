package mutations

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The measure that only a kernel with AppArmor has, so that test/vm takes it
// away (TestAppArmorConfinesContainers, in its virtual host).
const (
	LabelMeasure = "each container's first process changes to its AppArmor profile"
	LabelPlace   = "internal/confine/apply.go"
)

// The call in the script of the last steps before a container's program, and
// what is in its place without the measure.
const labelCall, noLabelCall = "\tp.writeAppArmor(s)\n", "\t_ = p.writeAppArmor\n"

// WithoutLabel writes the rewritten source to dir, and the file that `go build
// -overlay` takes. root is the repository's top.
func WithoutLabel(root, dir string) (overlay string, err error) {
	source, err := filepath.Abs(filepath.Join(root, LabelPlace))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(source) // #nosec G304 -- our own source
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), labelCall); n != 1 {
		return "", fmt.Errorf("%s has %d times, where one is expected: %q. The measure has moved: mend test/mutations/label.go", LabelPlace, n, labelCall)
	}
	changed := filepath.Join(dir, "apply.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), labelCall, noLabelCall, 1)), 0o600); err != nil {
		return "", err
	}
	raw, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}
