package team

import _ "embed"

//go:embed embed/example.yaml
var example string

// Example is the commented manifest that `bulkhead init` writes.
func Example() []byte { return []byte(example) }
