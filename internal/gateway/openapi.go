package gateway

import (
	_ "embed"
	"net/http"
)

//go:generate go test -run TestOpenAPI . -update

// document is OpenAPI 3.1: that of messages, and one path for each tool. It is
// made from the tool table by openapi_test.go and holds nothing of the agent's.
//
//go:embed openapi.json
var document []byte

// serveOpenAPI answers GET /v1/openapi.json.
func serveOpenAPI(w http.ResponseWriter, _ *http.Request) { writeJSON(w, document) }
