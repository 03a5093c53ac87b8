package db

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxDefault = 100 // characters

// clock and dice are the only defaults that are computed.
const (
	clock = "(strftime('%Y-%m-%dT%H:%M:%f','now') || '000Z')"
	dice  = "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)),2) || '-' || substr('89ab',1+abs(random()%4),1) || substr(hex(randomblob(2)),2) || '-' || hex(randomblob(6))))"
)

// defaultOf writes a column's default as SQL. It is a JSON value of the
// column's type, or as a string what PostgreSQL's clients send: a literal, now()
// for a time, gen_random_uuid() for a uuid. It is never an expression of the
// caller's.
func defaultOf(typ string, raw json.RawMessage) (string, error) {
	s := strings.TrimSpace(string(raw))
	quoted := strings.HasPrefix(s, `"`)
	if quoted {
		var err error
		if s, err = text(raw); err != nil {
			return "", err
		}
	}
	if utf8.RuneCountInString(s) > maxDefault {
		return "", fmt.Errorf("it has more than %d characters", maxDefault)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", errors.New("it has a NUL character")
	}
	if strings.EqualFold(s, "null") && (!quoted || typ != "text") {
		return "NULL", nil
	}
	if n := len(s); quoted && n >= 2 && s[0] == '\'' && s[n-1] == '\'' && !strings.Contains(strings.ReplaceAll(s[1:n-1], "''", ""), "'") {
		s = strings.ReplaceAll(s[1:n-1], "''", "'") // as in 'draft'
	}
	switch typ {
	case "integer", "bigint":
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return "", errors.New("a whole number is wanted")
		}
		return strconv.FormatInt(n, 10), nil
	case "real":
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || strings.ContainsAny(strings.ToLower(s), "xpin_") {
			return "", errors.New("a number is wanted")
		}
		out := strconv.FormatFloat(f, 'e', -1, 64)
		return out, nil
	case "boolean":
		switch strings.ToLower(s) {
		case "true", "1":
			return "1", nil
		case "false", "0":
			return "0", nil
		}
		return "", errors.New("true or false is wanted")
	case "timestamptz":
		if strings.EqualFold(s, "now()") || strings.EqualFold(s, "current_timestamp") {
			return clock, nil
		}
		at, err := moment(s)
		return literal(at), err
	case "uuid":
		if strings.EqualFold(s, "gen_random_uuid()") {
			return dice, nil
		}
		id, err := uuid(s)
		return literal(id), err
	case "jsonb":
		if !json.Valid([]byte(s)) {
			return "", errors.New("JSON is wanted")
		}
		return literal(s), nil
	}
	if !quoted {
		return "", errors.New("a string is wanted")
	}
	return literal(s), nil
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
