package factory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Knows reports whether a schematic is registered.
func (c *Client) Knows(ctx context.Context, id string) (bool, error) {
	_, err := c.ask(ctx, c.get("schematics", id))
	if hasStatus(err, http.StatusNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Register registers a schematic. One that the factory rejects is an error of kind
// Config with the factory's message.
func (c *Client) Register(ctx context.Context, canonical string) (id, stored string, err error) {
	r := c.get("schematics")
	r.method, r.body = http.MethodPost, []byte(canonical)
	var answer struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}
	if err := c.askJSON(ctx, r, &answer); err != nil {
		return "", "", err
	}
	if answer.ID == "" {
		return "", "", c.foreign(errors.New("the answer has no ID for the schematic"))
	}
	if answer.Schematic != "" {
		return answer.ID, answer.Schematic, nil
	}
	text, err := c.ask(ctx, c.get("schematics", answer.ID)) // older ones return only the ID
	if err != nil {
		return "", "", fmt.Errorf("read the schematic back: %w", err)
	}
	return answer.ID, string(text), nil
}
