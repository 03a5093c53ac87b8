package tool

// Schema is the JSON Schema (2020-12) of a tool's input, as MCP's tools/list
// and the OpenAPI document show it. Aliases are taken but not shown.
func (t *Tool) Schema() map[string]any { return schemaOf(t.Fields) }

func schemaOf(fields []Field) map[string]any {
	props, required := map[string]any{}, []string{}
	for i := range fields {
		props[fields[i].Name] = fields[i].schema()
		if fields[i].Required {
			required = append(required, fields[i].Name)
		}
	}
	s := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (f *Field) schema() map[string]any {
	s := map[string]any{}
	bound := func(low, high string) {
		if f.Min != 0 {
			s[low] = f.Min
		}
		if f.Max != 0 {
			s[high] = f.Max
		}
	}
	switch f.Type {
	case Bytes:
		s["type"], s["contentEncoding"] = "string", "base64"
		if f.Max > 0 {
			s["maxLength"] = (f.Max + 2) / 3 * 4
		}
	case String:
		s["type"] = "string"
		bound("minLength", "maxLength")
	case Integer, Number:
		s["type"] = string(f.Type)
		if f.Min != 0 || f.Max != 0 {
			s["minimum"], s["maximum"] = f.Min, f.Max
		}
	case Array:
		s["type"] = "array"
		bound("minItems", "maxItems")
		if f.Items != nil {
			s["items"] = f.Items.schema()
		}
	case Object:
		s["type"] = "object"
		if f.Fields != nil {
			s = schemaOf(f.Fields)
		}
	case Boolean:
		s["type"] = "boolean"
	case Any:
	}
	if f.Doc != "" {
		s["description"] = f.Doc
	}
	if f.Default != nil {
		s["default"] = f.Default
	}
	if f.Enum != nil {
		s["enum"] = f.Enum
	}
	if f.Pattern != nil {
		s["pattern"] = "^(?:" + f.Pattern.String() + ")$"
	}
	return s
}
