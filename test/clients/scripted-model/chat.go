package main

import "encoding/json"

// chat speaks OpenAI's chat completions
// (https://platform.openai.com/docs/api-reference/chat).
type chat struct{}

func (chat) read(body []byte) (*conversation, error) {
	var r struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string  `json:"role"`
			Content content `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Type     string `json:"type"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	c := &conversation{Model: r.Model, Stream: r.Stream, Entries: len(r.Messages), Tools: map[string]string{}}
	for _, m := range r.Messages {
		switch m.Role {
		case "user":
			c.Said = append(c.Said, m.Content.text())
		case "tool":
			c.Results = append(c.Results, m.Content.text())
		}
	}
	for _, t := range r.Tools {
		c.Tools[t.Function.Name] = t.Type
	}
	return c, nil
}

func (chat) message(id string, a answer) (object, string) {
	if a.Tool == "" {
		return object{"role": "assistant", "content": a.Text}, "stop"
	}
	return object{"role": "assistant", "content": nil, "tool_calls": []object{{
		"index": 0, "id": "call_" + id, "type": "function",
		"function": object{"name": a.Tool, "arguments": a.Arguments},
	}}}, "tool_calls"
}

var chatUsage = object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

func (s chat) whole(id string, c *conversation, a answer) object {
	msg, why := s.message(id, a)
	return object{
		"id": id, "object": "chat.completion", "created": 1, "model": c.Model, "usage": chatUsage,
		"choices": []object{{"index": 0, "message": msg, "finish_reason": why}},
	}
}

// events are the message, its end, and the usage; the mark of the end follows.
func (s chat) events(id string, c *conversation, a answer) []event {
	msg, why := s.message(id, a)
	chunk := func(choices ...object) object {
		return object{"id": id, "object": "chat.completion.chunk", "created": 1, "model": c.Model, "choices": choices}
	}
	last := chunk([]object{}...)
	last["choices"], last["usage"] = []object{}, chatUsage
	return []event{
		{"", chunk(object{"index": 0, "delta": msg, "finish_reason": nil})},
		{"", chunk(object{"index": 0, "delta": object{}, "finish_reason": why})},
		{"", last},
	}
}

func (chat) end() string { return "data: [DONE]\n\n" }
