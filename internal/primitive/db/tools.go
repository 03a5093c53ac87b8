package db

import (
	"context"
	"encoding/json"

	"bulkhead/internal/tool"
)

// maxInput is how much JSON a statement and its values may be: the longest text, or
// a value of some MiB.
const maxInput = 4 << 20

// Tools gives the rows of the tool table for this database.
func (s *Store) Tools() []tool.Tool {
	sql := tool.Field{Name: "sql", Aliases: []string{"query"}, Type: tool.String, Required: true, Min: 1, Max: 100_000, Doc: "one SQLite statement; ? or $1, $2, … stand for the parameters"}
	params := tool.Field{Name: "params", Type: tool.Array, Max: maxParams, Doc: `the parameters' values; {"$base64": "…"} for bytes`}
	table := tool.Field{Name: "table", Type: tool.String, Required: true, Min: 1, Max: maxName, Doc: "the table's name", Shown: true}
	row := tool.Field{Name: "data", Aliases: []string{"row", "values"}, Type: tool.Object, Required: true, Doc: "the columns' values, by name"}
	where := tool.Field{Name: "where", Type: tool.Object, Required: true, Doc: "which rows: all members hold; a value for equality, null, or an array for one of several"}
	return []tool.Tool{
		{
			Name: "db_query", Group: tool.SQL, Run: s.runQuery, MaxInput: maxInput,
			Summary: "Run one statement of SQL (SQLite) on your own database: SELECT, WITH, INSERT, UPDATE, DELETE, CREATE INDEX, DROP INDEX, DROP TABLE. Gives up to 10,000 rows.",
			Fields:  []tool.Field{sql, params},
		},
		{
			Name: "db_transaction", Group: tool.SQL, Effect: true, Run: s.runTransaction, MaxInput: maxInput,
			Summary: "Run 1 to 50 statements of SQL on your own database, all or nothing.",
			Fields: []tool.Field{{
				Name: "queries", Aliases: []string{"statements"}, Type: tool.Array, Required: true, Min: 1, Max: 50, Doc: "in their order",
				Items: &tool.Field{Type: tool.Object, Fields: []tool.Field{sql, params}},
			}},
		},
		{
			Name: "db_create_table", Group: tool.SQL, Effect: true, Run: s.runCreate,
			Summary: "Make a table in your own database.",
			Fields: []tool.Field{
				table,
				{
					Name: "schema", Aliases: []string{"columns"}, Type: tool.Array, Required: true, Min: 1, Max: 100, Doc: "the columns",
					Items: &tool.Field{Type: tool.Object, Fields: []tool.Field{
						{Name: "column", Aliases: []string{"name"}, Type: tool.String, Required: true, Min: 1, Max: maxName, Doc: "the column's name", Shown: true},
						{Name: "type", Type: tool.String, Required: true, Enum: []string{"text", "integer", "bigint", "boolean", "real", "jsonb", "timestamptz", "uuid"}, Shown: true},
						{Name: "nullable", Type: tool.Boolean, Doc: "without it: true, but for a primary key", Shown: true},
						{Name: "primaryKey", Type: tool.Boolean, Default: false, Shown: true},
						{Name: "default", Type: tool.Any, Max: 1024, Doc: "a value; now() for a timestamptz, gen_random_uuid() for a uuid"},
					}},
				},
				{Name: "ifNotExists", Type: tool.Boolean, Default: false, Doc: "leave a table that is there as it is, instead of failing", Shown: true},
			},
		},
		{
			Name: "db_insert", Group: tool.SQL, Effect: true, Run: s.runInsert, MaxInput: maxInput,
			Summary: "Add a row to a table of your own database; gives the row with its defaults.",
			Fields:  []tool.Field{table, row},
		},
		{
			Name: "db_update", Group: tool.SQL, Effect: true, Run: s.runUpdate, MaxInput: maxInput,
			Summary: "Change the rows of a table of your own database that have the given values.",
			Fields:  []tool.Field{table, row, where},
		},
		{
			Name: "db_delete", Group: tool.SQL, Effect: true, Run: s.runDelete, MaxInput: maxInput,
			Summary: "Delete the rows of a table of your own database that have the given values.",
			Fields:  []tool.Field{table, where},
		},
	}
}

func begin(ctx context.Context, c *tool.Call) func() error {
	return func() error { return c.Begin(ctx) }
}

func statementOf(in tool.Input) Statement {
	st := Statement{SQL: in.String("sql")}
	for _, p := range in.List("params") {
		raw, _ := p.(json.RawMessage)
		st.Params = append(st.Params, raw)
	}
	return st
}

func (s *Store) runQuery(ctx context.Context, c *tool.Call) (any, error) {
	r, err := s.Query(ctx, c.What(), statementOf(c.In), begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return r.answer(), nil
}

func (s *Store) runTransaction(ctx context.Context, c *tool.Call) (any, error) {
	var all []Statement
	for _, q := range c.In.List("queries") {
		in, _ := q.(tool.Input)
		all = append(all, statementOf(in))
	}
	results, err := s.Transaction(ctx, c.What(), all, begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return struct {
		Results []Result `json:"results"`
	}{results}, nil
}

func (s *Store) runCreate(ctx context.Context, c *tool.Call) (any, error) {
	var columns []Column
	for _, v := range c.In.List("schema") {
		in, _ := v.(tool.Input)
		col := Column{Name: in.String("column"), Type: in.String("type"), PrimaryKey: in.Bool("primaryKey"), Nullable: !in.Bool("primaryKey")}
		if in.Has("nullable") {
			col.Nullable = in.Bool("nullable")
		}
		if in.Has("default") {
			col.Default = in.Raw("default")
		}
		columns = append(columns, col)
	}
	table := c.In.String("table")
	made, err := s.Create(ctx, c.What(), table, columns, c.In.Bool("ifNotExists"), begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return struct {
		Table   string `json:"table"`
		Created bool   `json:"created"`
	}{table, made}, nil
}

// members reads an object's members; the table has seen that each is there once.
func members(raw json.RawMessage) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	err := json.Unmarshal(raw, &out)
	return out, err
}

func (s *Store) runInsert(ctx context.Context, c *tool.Call) (any, error) {
	data, err := members(c.In.Raw("data"))
	if err != nil {
		return nil, invalid(c.What(), "data", "%s", err)
	}
	row, err := s.Insert(ctx, c.What(), c.In.String("table"), data, begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return struct {
		Row json.RawMessage `json:"row"`
	}{row}, nil
}

func (s *Store) runUpdate(ctx context.Context, c *tool.Call) (any, error) {
	data, err := members(c.In.Raw("data"))
	if err != nil {
		return nil, invalid(c.What(), "data", "%s", err)
	}
	where, err := members(c.In.Raw("where"))
	if err != nil {
		return nil, invalid(c.What(), "where", "%s", err)
	}
	n, err := s.Update(ctx, c.What(), c.In.String("table"), data, where, begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return struct {
		UpdatedCount int64 `json:"updatedCount"`
	}{n}, nil
}

func (s *Store) runDelete(ctx context.Context, c *tool.Call) (any, error) {
	where, err := members(c.In.Raw("where"))
	if err != nil {
		return nil, invalid(c.What(), "where", "%s", err)
	}
	n, err := s.Delete(ctx, c.What(), c.In.String("table"), where, begin(ctx, c))
	if err != nil {
		return nil, err
	}
	return struct {
		DeletedCount int64 `json:"deletedCount"`
	}{n}, nil
}
