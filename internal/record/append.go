package record

import (
	"encoding/json"
	"strconv"
	"time"
)

// Append adds r to b as JSON, exactly as encoding/json writes it. A tool's call
// costs a quarter of what encoding/json takes for its record.
func (r *Record) Append(b []byte) ([]byte, error) {
	if y := r.Time.Year(); y < 0 || y > 9999 || r.Time.Location() != time.UTC {
		return whole(b, r) // not every time can be written
	}
	b = strconv.AppendInt(append(b, `{"schemaVersion":`...), int64(r.SchemaVersion), 10)
	b = append(r.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano), '"')
	b = text(append(b, `,"team":`...), r.Team)
	b = text(append(b, `,"agent":`...), r.Agent)
	b = text(append(b, `,"kind":`...), string(r.Kind))
	b = text(append(b, `,"verdict":`...), string(r.Verdict))
	if r.Target != "" {
		b = text(append(b, `,"target":`...), r.Target)
	}
	if r.Count != 0 {
		b = strconv.AppendUint(append(b, `,"count":`...), r.Count, 10)
	}
	if r.Detail != "" {
		b = text(append(b, `,"detail":`...), r.Detail)
	}
	if r.Reason != nil {
		var err error
		if b, err = whole(append(b, `,"reason":`...), r.Reason); err != nil {
			return nil, err
		}
	}
	if r.Token != "" {
		b = text(append(b, `,"token":`...), r.Token)
	}
	if len(r.Input) > 0 {
		b = append(b, `,"input":`...)
		if plain(r.Input) && json.Valid(r.Input) {
			b = append(b, r.Input...)
		} else {
			var err error
			if b, err = whole(b, r.Input); err != nil {
				return nil, err
			}
		}
	}
	if r.Micros != 0 {
		b = strconv.AppendInt(append(b, `,"micros":`...), r.Micros, 10)
	}
	return append(b, '}'), nil
}

func whole(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}

// text adds a string.
func text(b []byte, s string) []byte {
	for i := range len(s) {
		if ch := s[i]; ch < ' ' || ch >= 0x7f || ch == '"' || ch == '\\' || ch == '<' || ch == '>' || ch == '&' {
			b, _ = whole(b, s) // a string can always be written
			return b
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// plain says whether JSON has no white space and nothing that encoding/json would
// escape in it.
func plain(raw []byte) bool {
	for _, ch := range raw {
		if ch <= ' ' || ch >= 0x7f || ch == '<' || ch == '>' || ch == '&' {
			return false
		}
	}
	return true
}
