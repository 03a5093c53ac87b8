package main

import "encoding/json"

// messages speaks Anthropic's messages
// (https://docs.anthropic.com/en/api/messages, /en/api/messages-streaming).
type messages struct{}

func (messages) read(body []byte) (*conversation, error) {
	var r struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string  `json:"role"`
			Content content `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Type string `json:"type"`
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	c := &conversation{Model: r.Model, Stream: r.Stream, Entries: len(r.Messages), Tools: map[string]string{}}
	for _, m := range r.Messages {
		if m.Role != "user" {
			continue
		}
		for _, p := range m.Content.parts {
			if p.Type == "tool_result" {
				c.Results = append(c.Results, p.Content.text())
			} else {
				c.Said = append(c.Said, p.Text)
			}
		}
	}
	for _, t := range r.Tools {
		c.Tools[t.Name] = t.Type
	}
	return c, nil
}

// block is the answer's content, and why the answer ends with it.
func (messages) block(id string, a answer) (object, string) {
	if a.Tool == "" {
		return object{"type": "text", "text": a.Text}, "end_turn"
	}
	return object{"type": "tool_use", "id": "toolu_" + id, "name": a.Tool, "input": json.RawMessage(a.Arguments)}, "tool_use"
}

func (s messages) whole(id string, c *conversation, a answer) object {
	block, why := s.block(id, a)
	return object{
		"id": "msg_" + id, "type": "message", "role": "assistant", "model": c.Model, "content": []object{block},
		"stop_reason": why, "stop_sequence": nil, "usage": object{"input_tokens": 10, "output_tokens": 5},
	}
}

func (s messages) events(id string, c *conversation, a answer) []event {
	whole := s.whole(id, c, a)
	_, why := s.block(id, a)
	whole["content"], whole["stop_reason"] = []object{}, nil
	start, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": a.Text}
	if a.Tool != "" {
		start, _ = s.block(id, a)
		start["input"] = object{}
		delta = object{"type": "input_json_delta", "partial_json": a.Arguments}
	}
	return []event{
		{"message_start", object{"type": "message_start", "message": whole}},
		{"content_block_start", object{"type": "content_block_start", "index": 0, "content_block": start}},
		{"content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta}},
		{"content_block_stop", object{"type": "content_block_stop", "index": 0}},
		{"message_delta", object{"type": "message_delta", "delta": object{"stop_reason": why, "stop_sequence": nil}, "usage": object{"output_tokens": 5}}},
		{"message_stop", object{"type": "message_stop"}},
	}
}

func (messages) end() string { return "" }
