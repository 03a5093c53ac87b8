package launcher

import (
	"slices"
	"testing"

	"bulkhead/internal/wire"
)

func FuzzCodeRequest(f *testing.F) {
	f.Add([]byte(`{"language":"python","code":"print(1)","limits":{"millis":30000}}`))
	f.Add([]byte(`{"language":"python","limits":{"millis":9223372036854775807}}`))
	f.Add([]byte(`{"language":"sh","code":"x","argv":["x"],"limits":{"millis":-1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q, limit, err := parseCode(raw)
		if err != nil {
			return
		}
		if !slices.Contains(wire.CodeLanguages(), q.Language) || interpreters[q.Language].command == nil || len(q.Code) > wire.MaxCode || limit < wire.MinCodeDuration || limit > wire.MaxCodeDuration {
			t.Fatalf("%q is taken: %+v for %s", raw, q, limit)
		}
	})
}
