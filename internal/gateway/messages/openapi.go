package messages

import (
	_ "embed"
	"net/http"
)

//go:generate go test -run TestOpenAPI . -update

// document is OpenAPI 3.1, made from the Go types by openapi_test.go: a gateway
// needs no reflection at its start, and there is one for each agent.
//
//go:embed openapi.json
var document []byte

// ServeOpenAPI answers GET /v1/openapi.json. It holds nothing of the agent's.
func ServeOpenAPI(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, document) }
