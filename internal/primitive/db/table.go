package db

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"bulkhead/internal/deny"
	"bulkhead/internal/tool"
)

const maxName = 63 // characters of a table's or column's name

// identifier quotes a name. Every name can be quoted but an empty one, one
// with a character that nobody sees, and those that SQLite keeps for itself.
func identifier(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("it is empty")
	case !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxName:
		return "", fmt.Errorf("it has more than %d characters, or is not UTF-8", maxName)
	case strings.HasPrefix(strings.ToLower(name), "sqlite_"):
		return "", errors.New("names that begin with sqlite_ are SQLite's own")
	}
	for _, c := range name {
		if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == utf8.RuneError {
			return "", fmt.Errorf("it has %U, which nobody sees", c)
		}
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`, nil
}

// columnType is how a type of db_create_table is kept.
type columnType struct {
	declared string
	// check is what every value must be; ? is the column. NULL passes.
	check string
}

// types are those of the published tool. The declared type decides how SQLite
// compares (its affinity), and how a value is given as JSON.
var types = map[string]columnType{
	"text":        {"TEXT", ""},
	"integer":     {"INTEGER", "typeof(?) IN ('integer','null')"},
	"bigint":      {"BIGINT", "typeof(?) IN ('integer','null')"},
	"boolean":     {"BOOLEAN", "? IN (0,1)"},
	"real":        {"REAL", "typeof(?) IN ('real','null')"},
	"jsonb":       {"JSONB TEXT", "json_valid(?)"},
	"timestamptz": {"TIMESTAMPTZ TEXT", "typeof(?) IN ('text','null') AND datetime(?) IS NOT NULL OR ? IS NULL"},
	"uuid":        {"UUID TEXT", "length(?)=36 AND ?=lower(?) AND length(replace(?,'-',''))=32 AND replace(?,'-','') NOT GLOB '*[^0-9a-f]*'"},
}

// Column is one column of a table to be made.
type Column struct {
	Name       string
	Type       string
	Nullable   bool
	PrimaryKey bool
	Default    json.RawMessage // nil: none
}

// define writes CREATE TABLE. Names and defaults are all of the text that an
// agent chose; both are quoted.
func define(what, table string, columns []Column) (string, error) {
	var faults []deny.Field
	fault := func(field string, err error) { faults = append(faults, deny.Field{Name: field, Why: err.Error()}) }
	name, err := identifier(table)
	if err == nil && strings.HasPrefix(strings.ToLower(table), "pragma_") {
		err = errors.New("names that begin with pragma_ are SQLite's own")
	}
	if err != nil {
		fault("table", err)
	}
	var keys, lines, checks []string
	alone := len(slices.DeleteFunc(slices.Clone(columns), func(c Column) bool { return !c.PrimaryKey })) == 1
	seen := map[string]bool{}
	for i, c := range columns {
		at := "schema[" + strconv.Itoa(i) + "]"
		quoted, err := identifier(c.Name)
		if err != nil {
			fault(at+".column", err)
		}
		if folded := strings.ToLower(c.Name); seen[folded] {
			fault(at+".column", errors.New("there is another column of this name"))
		} else {
			seen[folded] = true
		}
		t := types[c.Type]
		if c.Type == "bigint" && c.PrimaryKey && alone {
			t = types["integer"] // the one that SQLite gives the next number by itself
		}
		line := quoted + " " + t.declared
		if c.PrimaryKey {
			keys = append(keys, quoted)
		}
		if !c.Nullable {
			line += " NOT NULL"
		}
		if c.Default != nil {
			d, err := defaultOf(c.Type, c.Default)
			if err != nil {
				fault(at+".default", err)
			}
			line += " DEFAULT " + d
		}
		lines = append(lines, line)
		if t.check != "" {
			checks = append(checks, "CHECK ("+strings.ReplaceAll(t.check, "?", quoted)+")")
		}
	}
	if len(faults) > 0 {
		r := tool.Refuse(deny.ToolInvalid, what, "the input is not what this tool takes", "mend the fields that are named")
		r.Fields = faults
		return "", r
	}
	if len(keys) > 0 {
		lines = append(lines, "PRIMARY KEY ("+strings.Join(keys, ", ")+")")
	}
	return "CREATE TABLE " + name + " (" + strings.Join(append(lines, checks...), ", ") + ")", nil
}

// Create makes a table. It says whether it was made: with lenient, one that is
// there already is left as it is.
func (s *Store) Create(ctx context.Context, what, table string, columns []Column, lenient bool, begin func() error) (made bool, err error) {
	sql, err := define(what, table, columns)
	if err != nil {
		return false, err
	}
	if err := begin(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Time)
	defer cancel()
	err = s.writing(ctx, func(c *conn) error {
		if c.modules[strings.ToLower(table)] {
			return invalid(what, "table", "the name is one of SQLite's own")
		}
		return s.refused(ctx, c, what, s.transaction(ctx, c, func() error {
			found, err := c.columnsOf(table)
			if err != nil {
				return err
			}
			if len(found) > 0 && lenient {
				return nil
			}
			if len(found) > 0 {
				return tool.Refuse(deny.ToolConflict, what, fmt.Sprintf("the table %q is there already", table), `use it; or DROP TABLE first; or give "ifNotExists": true`)
			}
			made = true
			c.begin(makeTable)
			return s.refused(ctx, c, what, c.rows(statement{text: sql}, nil, func([]column, []driver.Value) error { return nil }))
		}))
	})
	return made && err == nil, s.overdue(what, err)
}

// columnsOf gives the declared types of a table's columns, by name; none: there is no such table.
func (c *conn) columnsOf(table string) (map[string]string, error) {
	c.own = true
	out := map[string]string{}
	err := c.rows(statement{text: "SELECT name, upper(type) FROM pragma_table_info(?)"}, []driver.Value{table}, func(_ []column, row []driver.Value) error {
		name, _ := row[0].(string)
		out[name], _ = row[1].(string)
		return nil
	})
	return out, err
}
