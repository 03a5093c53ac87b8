package messages

import _ "embed"

//go:generate go test -run TestOpenAPI . -update

// document is OpenAPI 3.1, made from the Go types by openapi_test.go: a gateway
// needs no reflection at its start, and there is one for each agent.
//
//go:embed openapi.json
var document []byte

// OpenAPI is the part of GET /v1/openapi.json about messages.
func OpenAPI() []byte { return document }
