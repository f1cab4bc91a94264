package step

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestUnmetGoal: the error of a step that misses its goal names the goal, and what is there instead.
func TestUnmetGoal(t *testing.T) {
	t.Parallel()
	for want, lacks := range map[string]func(context.Context) (string, error){
		`a: "paint it green" was done, and its goal is not reached`: nil,
		`a: "paint it green" was done, and its goal is not reached: it is red`: func(context.Context) (string, error) {
			return "it is red", nil
		},
		`a: "paint it green" was done, and its goal is not reached; what is there instead can't be read: dark`: func(context.Context) (string, error) {
			return "", errors.New("dark")
		},
	} {
		s := Step{
			ID: "a", Title: "paint it green", Lacks: lacks,
			Skip: func(context.Context) (string, error) { return "", nil }, Do: func(context.Context) error { return nil },
		}
		if err := new(Runner).Run(t.Context(), s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("err = %v, want %s", err, want)
		}
	}
}
