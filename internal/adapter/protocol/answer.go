package protocol

import (
	"encoding/json"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/wire"
)

// Answer decodes an answer of the verb want into out, or gives the refusal that
// came instead: a *deny.Reason for denied. With a *json.RawMessage it gives the
// body as it is; nil: nothing is wanted of it. Other errors begin with who, the
// name of the server.
func Answer(m wire.Message, want, who string, out any) error {
	into := func(out any) error {
		if err := json.Unmarshal(m.Body, out); err != nil {
			return fmt.Errorf("%s: the answer %s does not decode: %w", who, m.Verb, err)
		}
		return nil
	}
	switch m.Verb {
	case want:
		switch raw := out.(type) {
		case nil:
			return nil
		case *json.RawMessage: // the frame is this message's alone
			*raw = m.Body
			return nil
		}
		return into(out)
	case VerbDenied:
		var r deny.Reason
		if err := into(&r); err != nil {
			return err
		}
		return &r
	case VerbError:
		var f wire.Failure
		if err := into(&f); err != nil {
			return err
		}
		return fmt.Errorf("%s: %s", who, f.Message)
	}
	return fmt.Errorf("%s: answered %.40q, not %q", who, m.Verb, want)
}
