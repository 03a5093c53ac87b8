package db

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

// maxList is how many values one member of a where may allow.
const maxList = 100

// build writes one statement from names and values. Names are quoted, values
// are parameters.
type build struct {
	what   string
	sql    strings.Builder
	args   []driver.Value
	types  map[string]string // declared types of the table's columns
	faults []deny.Field
}

func (b *build) fault(field, why string) {
	if len(b.faults) < tool.MaxFaults {
		b.faults = append(b.faults, deny.Field{Name: field, Why: why})
	}
}

// name writes a column that the table has. SQLite's names are the same in
// upper and lower case.
func (b *build) name(field, column string) (typ string) {
	quoted, err := identifier(column)
	if err != nil {
		b.fault(field, err.Error())
		return ""
	}
	for have, typ := range b.types {
		if strings.EqualFold(have, column) {
			b.sql.WriteString(quoted)
			return typ
		}
	}
	b.fault(field, "the table has no such column")
	return ""
}

// value writes a parameter.
func (b *build) value(field string, raw json.RawMessage, typ string) {
	v, err := convert(raw, typ)
	if err != nil {
		b.fault(field, err.Error())
		return
	}
	b.sql.WriteString("?")
	b.args = append(b.args, v)
}

// where writes the condition: every member of the object holds. A value means
// equality, null means IS NULL, and an array one of its values.
func (b *build) where(members map[string]json.RawMessage) {
	if len(members) == 0 {
		b.fault("where", "it is empty; name at least one column")
	}
	for i, column := range slices.Sorted(maps.Keys(members)) {
		field, raw := "where."+clip(column), members[column]
		if i > 0 {
			b.sql.WriteString(" AND ")
		}
		typ := b.name(field, column)
		switch {
		case string(raw) == "null":
			b.sql.WriteString(" IS NULL")
		case raw[0] == '[':
			b.list(field, raw, typ)
		case raw[0] == '{' && !strings.Contains(string(raw), blobKey):
			b.fault(field, "a value, null or an array of values is wanted; there are no operators")
		default:
			b.sql.WriteString(" = ")
			b.value(field, raw, typ)
		}
	}
}

func (b *build) list(field string, raw json.RawMessage, typ string) {
	var values []json.RawMessage
	if json.Unmarshal(raw, &values) != nil || len(values) == 0 || len(values) > maxList {
		b.fault(field, fmt.Sprintf("an array of 1 to %d values is wanted", maxList))
		return
	}
	b.sql.WriteString(" IN (")
	for i, v := range values {
		if i > 0 {
			b.sql.WriteString(", ")
		}
		if string(v) == "null" || v[0] == '[' || v[0] == '{' && !strings.Contains(string(v), blobKey) {
			b.fault(fmt.Sprintf("%s[%d]", field, i), "a value is wanted; null is never one of several")
			continue
		}
		b.value(fmt.Sprintf("%s[%d]", field, i), v, typ)
	}
	b.sql.WriteString(")")
}

func (b *build) done() (ready, error) {
	if len(b.faults) > 0 {
		r := tool.Refuse(deny.ToolInvalid, b.what, "the input is not what this tool takes", "mend the fields that are named; PRAGMA table_info(table) shows the columns")
		r.Fields = b.faults
		return ready{}, r
	}
	if len(b.args) > maxParams {
		return ready{}, invalid(b.what, "where", "there are %d values; at most %d are taken", len(b.args), maxParams)
	}
	return ready{statement{kind: write, text: b.sql.String(), params: len(b.args)}, b.args}, nil
}

// convert turns a JSON value into what a column of that type keeps. Only times
// and uuids have more than one spelling; and a column of JSON keeps strings
// and numbers as JSON too.
func convert(raw json.RawMessage, typ string) (driver.Value, error) {
	isString := len(raw) > 0 && raw[0] == '"'
	switch word, _, _ := strings.Cut(typ, " "); {
	case word == "JSONB" && string(raw) != "null":
		return compact(raw)
	case word == "TIMESTAMPTZ" && isString:
		s, err := text(raw)
		if err != nil {
			return nil, err
		}
		return moment(s)
	case word == "UUID" && isString:
		s, err := text(raw)
		if err != nil {
			return nil, err
		}
		return uuid(s)
	}
	return bind(raw)
}

// moment gives the one spelling of a time: UTC, with microseconds, so that the order of
// the texts is that of the times.
func moment(s string) (string, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return "", errors.New("a time like 2026-11-30T08:30:00Z is wanted (RFC 3339)")
	}
	t = t.UTC()
	if t.Year() < 0 || t.Year() > 9999 {
		return "", errors.New("the year is not one of 0 to 9999")
	}
	return t.Format("2006-01-02T15:04:05.000000Z"), nil
}

// uuid gives the one spelling of a uuid (RFC 9562, 4).
func uuid(s string) (string, error) {
	s = strings.ToLower(s)
	if len(s) != 36 {
		return "", errors.New("a uuid of 36 characters is wanted")
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && !hex(s[i]) {
			return "", errors.New("a uuid is wanted, like 123e4567-e89b-42d3-a456-426614174000")
		}
	}
	return s, nil
}

// change runs one statement that is made from the table's columns.
func (s *Store) change(ctx context.Context, what, table string, begin func() error, make func(*build, string)) (Result, error) {
	quoted, err := identifier(table)
	if err != nil {
		return Result{}, invalid(what, "table", "%s", err)
	}
	if err := begin(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Time)
	defer cancel()
	var out Result
	err = s.writing(ctx, func(c *conn) error {
		return s.refused(ctx, c, what, s.transaction(ctx, c, func() error {
			b := &build{what: what}
			if b.types, err = c.columnsOf(table); err != nil {
				return err
			}
			if len(b.types) == 0 || c.modules[strings.ToLower(table)] {
				return tool.Refuse(deny.ToolMissing, what, fmt.Sprintf("there is no table %q", table), "db_create_table makes one")
			}
			make(b, quoted)
			st, err := b.done()
			if err != nil {
				return err
			}
			c.begin(write)
			out, err = s.one(c, what, st, b.types)
			return s.refused(ctx, c, what, err)
		}))
	})
	return out, s.overdue(what, err)
}

// Insert adds a row and gives it as it is then.
func (s *Store) Insert(ctx context.Context, what, table string, row map[string]json.RawMessage, begin func() error) (json.RawMessage, error) {
	out, err := s.change(ctx, what, table, begin, func(b *build, quoted string) {
		if len(row) == 0 {
			b.sql.WriteString("INSERT INTO " + quoted + " DEFAULT VALUES RETURNING *")
			return
		}
		b.sql.WriteString("INSERT INTO " + quoted + " (")
		columns := slices.Sorted(maps.Keys(row))
		found := make([]string, len(columns))
		for i, name := range columns {
			if i > 0 {
				b.sql.WriteString(", ")
			}
			found[i] = b.name("data."+clip(name), name)
		}
		b.sql.WriteString(") VALUES (")
		for i, name := range columns {
			if i > 0 {
				b.sql.WriteString(", ")
			}
			b.value("data."+clip(name), row[name], found[i])
		}
		b.sql.WriteString(") RETURNING *")
	})
	if err != nil {
		return nil, err
	}
	if len(out.Rows) != 1 {
		return nil, fmt.Errorf("an insert gave %d rows", len(out.Rows))
	}
	return out.Rows[0], nil
}

// Update changes the rows of which every member of where holds, and says how many.
func (s *Store) Update(ctx context.Context, what, table string, row, where map[string]json.RawMessage, begin func() error) (int64, error) {
	out, err := s.change(ctx, what, table, begin, func(b *build, quoted string) {
		b.sql.WriteString("UPDATE " + quoted + " SET ")
		if len(row) == 0 {
			b.fault("data", "it is empty; name at least one column")
		}
		for i, name := range slices.Sorted(maps.Keys(row)) {
			if i > 0 {
				b.sql.WriteString(", ")
			}
			typ := b.name("data."+clip(name), name)
			b.sql.WriteString(" = ")
			b.value("data."+clip(name), row[name], typ)
		}
		b.sql.WriteString(" WHERE ")
		b.where(where)
	})
	return out.RowCount, err
}

// Delete removes the rows of which every member of where holds, and says how many.
func (s *Store) Delete(ctx context.Context, what, table string, where map[string]json.RawMessage, begin func() error) (int64, error) {
	out, err := s.change(ctx, what, table, begin, func(b *build, quoted string) {
		b.sql.WriteString("DELETE FROM " + quoted + " WHERE ")
		b.where(where)
	})
	return out.RowCount, err
}
