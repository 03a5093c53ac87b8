package db

import (
	"fmt"
	"strconv"
	"strings"
)

// kind is what a statement does, told by its first words.
type kind int

const (
	query     kind = iota // SELECT, VALUES, PRAGMA, EXPLAIN; WITH, of which SQLite says later whether it writes
	write                 // INSERT, REPLACE, UPDATE, DELETE
	makeIndex             // CREATE INDEX
	drop                  // DROP INDEX, DROP TABLE
	makeTable             // the one that db_create_table makes
)

// statement is one SQL statement, looked at without being understood.
type statement struct {
	kind   kind
	text   string // without what follows its end
	params int    // how many parameters it wants
	// explained says that it only tells how it would be done.
	explained bool
}

// refusal is why a text is not run: unsafe when it is understood and denied,
// else malformed.
type refusal struct {
	unsafe bool
	why    string
	mend   string
}

func (r *refusal) Error() string { return r.why }

// denied are first words that are understood, and why they are refused.
var denied = map[string]string{
	"ATTACH": "there is no other database", "DETACH": "there is no other database", "VACUUM": "freed pages are given back by themselves, and VACUUM INTO writes files",
	"BEGIN": "use db_transaction", "COMMIT": "use db_transaction", "END": "use db_transaction", "ROLLBACK": "use db_transaction",
	"SAVEPOINT": "use db_transaction", "RELEASE": "use db_transaction", "ALTER": "make a new table with db_create_table and copy into it",
	"REINDEX": "indexes are kept by themselves", "ANALYZE": "it writes SQLite's own tables",
	"SET": "settings are not an agent's", "COPY": "files are not reached from SQL", "LOAD": "files are not reached from SQL", "GRANT": "there are no roles", "REVOKE": "there are no roles",
}

// scan finds the one statement in a text, by SQLite's own rules for tokens
// (https://sqlite.org/lang.html, tokenize.c). The authorizer judges
// whatever SQLite makes of it; this makes sure that it is one statement, of a
// kind that is run here, with as many parameters as are given.
func scan(sql string) (statement, *refusal) {
	if strings.IndexByte(sql, 0) >= 0 {
		return statement{}, &refusal{true, "the SQL has a NUL character, at which SQLite would stop reading", "leave it out; give data as parameters"}
	}
	var words []string
	var variables variables
	start, end, ended := -1, 0, false
	for i := 0; i < len(sql); {
		t, n := token(sql[i:])
		if t == space {
			i += n
			continue
		}
		if ended && t != semicolon {
			return statement{}, &refusal{true, "there is more than one statement", "give one statement a call; several at once go to db_transaction"}
		}
		switch t {
		case semicolon:
			ended = true
			i += n
			continue
		case word:
			if len(words) < 4 && (len(words) == 0 || start >= 0 && onlyWords(sql[start:i])) {
				words = append(words, strings.ToUpper(sql[i:i+n]))
			}
		case variable:
			if r := variables.add(sql[i : i+n]); r != nil {
				return statement{}, r
			}
		case illegal:
			return statement{}, &refusal{false, fmt.Sprintf("at %.20q begins what is no SQL: a string, name or number that does not end, or a character that SQL does not have", sql[i:]), "quote names with \"…\" and give data as parameters"}
		case space, other:
		}
		if start < 0 {
			start = i
		}
		i += n
		end = i
	}
	if start < 0 {
		return statement{}, &refusal{false, "there is no statement", "give one SQL statement"}
	}
	k, r := kindOf(words)
	if r != nil {
		return statement{}, r
	}
	n, r := variables.count()
	return statement{k, sql[start:end], n, words[0] == "EXPLAIN"}, r
}

// onlyWords says whether nothing but words and spaces are in a text.
func onlyWords(s string) bool {
	for i := 0; i < len(s); {
		t, n := token(s[i:])
		if t != word && t != space {
			return false
		}
		i += n
	}
	return true
}

func kindOf(words []string) (kind, *refusal) {
	at := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch w := at(0); w {
	case "SELECT", "VALUES", "WITH", "PRAGMA":
		return query, nil
	case "EXPLAIN":
		inner := words[1:]
		if at(1) == "QUERY" && at(2) == "PLAN" {
			inner = words[3:]
		}
		if k, r := kindOf(inner); r != nil || k != query && k != write {
			return 0, &refusal{r == nil || r.unsafe, "only what reads or changes rows can be explained", "use EXPLAIN QUERY PLAN SELECT …"}
		}
		return query, nil
	case "INSERT", "REPLACE", "UPDATE", "DELETE":
		return write, nil
	case "CREATE":
		if at(1) == "INDEX" || at(1) == "UNIQUE" && at(2) == "INDEX" {
			return makeIndex, nil
		}
		return 0, &refusal{true, "the schema is made by db_create_table; from SQL only CREATE INDEX, DROP INDEX and DROP TABLE are run", "use db_create_table; views, triggers, virtual and temporary tables there are none"}
	case "DROP":
		if at(1) == "INDEX" || at(1) == "TABLE" {
			return drop, nil
		}
		return 0, &refusal{true, "only indexes and tables can be dropped; there is nothing else", "use DROP INDEX or DROP TABLE"}
	default:
		if why, ok := denied[w]; ok {
			return 0, &refusal{true, w + " is not run here", why}
		}
		return 0, &refusal{false, fmt.Sprintf("the statement begins with %.20q", w), "use SELECT, WITH, VALUES, INSERT, REPLACE, UPDATE, DELETE, CREATE INDEX, DROP INDEX, DROP TABLE, EXPLAIN, or a PRAGMA that describes the schema"}
	}
}

// variables are the parameters that a statement names.
type variables struct {
	plain   int // how many ?
	highest int // of $N and ?N
}

func (v *variables) add(name string) *refusal {
	if name == "?" {
		v.plain++
		return nil
	}
	if n, err := strconv.Atoi(name[1:]); err == nil && (name[0] == '?' || name[0] == '$') && n > 0 && name[1] != '0' && name[1] != '+' {
		v.highest = max(v.highest, n)
		return nil
	}
	if strings.Contains(name, "::") {
		return &refusal{false, fmt.Sprintf("%.40q is a cast as PostgreSQL writes it", name), "use CAST(value AS type)"}
	}
	return &refusal{false, fmt.Sprintf("the parameter %.40q has a name", name), "use ? or $1, $2, …"}
}

func (v *variables) count() (int, *refusal) {
	if v.plain > 0 && v.highest > 0 {
		return 0, &refusal{false, "? and numbered parameters are mixed", "use ? for all, or $1, $2, … for all"}
	}
	return v.plain + v.highest, nil
}
