package image

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Scripts says of which npm packages the install scripts are run: of none (the
// default), of all (true), or of those that are named. Each is code of
// strangers, run as the builder's id.
type Scripts struct {
	All  bool
	Only []string // package names, without versions
}

// MarshalJSON writes the form that a recipe has.
func (s Scripts) MarshalJSON() ([]byte, error) {
	if len(s.Only) > 0 {
		return json.Marshal(s.Only)
	}
	return json.Marshal(s.All)
}

// UnmarshalJSON reads true, false or a list of names.
func (s *Scripts) UnmarshalJSON(text []byte) error {
	return s.read(func(v any) error { return json.Unmarshal(text, v) })
}

// UnmarshalYAML reads true, false or a list of names.
func (s *Scripts) UnmarshalYAML(read func(any) error) error { return s.read(read) }

func (s *Scripts) read(into func(any) error) error {
	*s = Scripts{}
	if into(&s.All) == nil {
		return nil
	}
	if into(&s.Only) == nil {
		return nil
	}
	return errors.New("npm.scripts: write true, false, or the names of the packages whose install scripts shall run")
}

// faults are the names that are no npm package's.
func (s Scripts) faults() (out []error) {
	for i, name := range s.Only {
		if !npmRE.MatchString(name + "@0.0.0") {
			out = append(out, fmt.Errorf("npm.scripts[%d]: %q is not a package's name", i, name))
		}
	}
	return out
}
