package db

import (
	"strings"

	"modernc.org/sqlite"
)

// policy is what SQLite asks, for every action of a statement, while it
// compiles it, and again when the schema changed meanwhile. What is not listed is
// denied. It belongs to one connection, and one goroutine at a time.
type policy struct {
	// own lets this package's own statements through.
	own  bool
	kind kind
	// wrote says that the statement changes rows.
	wrote bool
	// denied is the first thing that was.
	denied string
	// modules are the names of SQLite's table-valued functions and virtual
	// tables, which can be read without having been made. Lower case.
	modules map[string]bool
}

func (p *policy) begin(k kind) { p.own, p.kind, p.wrote, p.denied = false, k, false, "" }

func (p *policy) judge(action sqlite.AuthorizerActionCode, arg1, arg2, schema, _ string) sqlite.AuthorizerReturnCode {
	if p.own {
		return sqlite.AuthorizerOK
	}
	if what := p.deny(action, arg1, arg2, schema); what != "" {
		if p.denied == "" {
			p.denied = what
		}
		return sqlite.AuthorizerDeny
	}
	return sqlite.AuthorizerOK
}

// deny says what is denied; empty: nothing.
func (p *policy) deny(action sqlite.AuthorizerActionCode, arg1, arg2, schema string) string {
	name := strings.ToLower(arg1)
	if schema != "" && schema != "main" {
		return "another database than the agent's own (" + clip(schema) + ")"
	}
	switch action {
	case sqlite.AuthSelect, sqlite.AuthRecursive:
		return "" // a recursion is bounded by time and memory
	case sqlite.AuthRead:
		return p.read(name)
	case sqlite.AuthFunction:
		if !functions[strings.ToLower(arg2)] {
			return "the function " + clip(arg2)
		}
		return ""
	case sqlite.AuthPragma:
		if !pragmas[name] {
			return "PRAGMA " + clip(arg1)
		}
		return ""
	case sqlite.AuthInsert, sqlite.AuthUpdate, sqlite.AuthDelete:
		p.wrote = true
		if strings.HasPrefix(name, "sqlite_") && p.kind != makeIndex && p.kind != drop && p.kind != makeTable || p.modules[name] {
			return "a change of " + clip(arg1) + ", which SQLite keeps itself"
		}
		return ""
	case sqlite.AuthCreateIndex, sqlite.AuthReindex:
		if p.kind == makeIndex || p.kind == makeTable {
			return ""
		}
	case sqlite.AuthDropIndex, sqlite.AuthDropTable:
		if p.kind == drop && !strings.HasPrefix(name, "sqlite_") {
			return ""
		}
	case sqlite.AuthCreateTable:
		if p.kind == makeTable && !strings.HasPrefix(name, "sqlite_") {
			return ""
		}
	}
	return actions[action]
}

func (p *policy) read(table string) string {
	switch {
	case table == "sqlite_master", table == "sqlite_schema", readable[table]:
		return ""
	case strings.HasPrefix(table, "pragma_"): // no table of an agent is named so, and modules knows of none before its first use
		if pragmas[strings.TrimPrefix(table, "pragma_")] {
			return ""
		}
	case !strings.HasPrefix(table, "sqlite_") && !p.modules[table]:
		return ""
	case p.kind == drop || p.kind == makeIndex || p.kind == makeTable:
		// SQLite reads what it keeps itself while it changes the schema. No
		// statement of these kinds can name a table to read.
		if strings.HasPrefix(table, "sqlite_") && !p.modules[table] {
			return ""
		}
	}
	return "reading " + clip(table)
}

// actions names what is denied whatever it is applied to.
var actions = map[sqlite.AuthorizerActionCode]string{
	sqlite.AuthAttach: "ATTACH", sqlite.AuthDetach: "DETACH", sqlite.AuthAlterTable: "ALTER TABLE", sqlite.AuthAnalyze: "ANALYZE", sqlite.AuthReindex: "REINDEX",
	sqlite.AuthTransaction: "BEGIN, COMMIT or ROLLBACK", sqlite.AuthSavepoint: "SAVEPOINT",
	sqlite.AuthCreateTable: "CREATE TABLE", sqlite.AuthCreateIndex: "CREATE INDEX", sqlite.AuthDropTable: "DROP TABLE", sqlite.AuthDropIndex: "DROP INDEX",
	sqlite.AuthCreateTempTable: "a temporary table", sqlite.AuthCreateTempIndex: "a temporary index", sqlite.AuthCreateTempTrigger: "a trigger", sqlite.AuthCreateTempView: "a view",
	sqlite.AuthDropTempTable: "a temporary table", sqlite.AuthDropTempIndex: "a temporary index", sqlite.AuthDropTempTrigger: "a trigger", sqlite.AuthDropTempView: "a view",
	sqlite.AuthCreateTrigger: "a trigger", sqlite.AuthCreateView: "a view", sqlite.AuthDropTrigger: "a trigger", sqlite.AuthDropView: "a view",
	sqlite.AuthCreateVTable: "a virtual table", sqlite.AuthDropVTable: "a virtual table",
	sqlite.AuthRead: "reading", sqlite.AuthPragma: "PRAGMA",
}

// pragmas describe the agent's own schema and change nothing.
var pragmas = set(`table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list page_count freelist_count`)

// readable are table-valued functions of values alone.
var readable = set(`json_each json_tree`)

// functions are those that compute from their arguments, the clock and
// chance. Not among them is what reaches files, loads code, keeps state or tells
// of the process: load_extension, fts3_tokenizer, readfile, writefile, edit,
// sqlite_offset, sqlite_log, sqlite_compileoption_get, …
var functions = set(`
	abs char coalesce concat concat_ws format glob hex if ifnull iif instr length octet_length like likelihood likely unlikely lower ltrim max min
	nullif printf quote random randomblob replace round rtrim sign soundex substr substring trim typeof unhex unicode unistr unistr_quote upper zeroblob
	changes total_changes last_insert_rowid sqlite_version match regexp
	date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
	avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
	row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
	acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power radians sin sinh sqrt tan tanh trunc
	json jsonb json_array jsonb_array json_array_length json_array_insert jsonb_array_insert json_error_position json_extract jsonb_extract -> ->> json_insert jsonb_insert json_object jsonb_object
	json_patch jsonb_patch json_pretty json_remove jsonb_remove json_replace jsonb_replace json_set jsonb_set json_type json_valid json_quote
	json_group_array jsonb_group_array json_group_object jsonb_group_object
`)

func set(words string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(words) {
		out[w] = true
	}
	return out
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
