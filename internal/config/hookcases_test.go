package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// withHook is small with one hook of those keys, written in braces.
func withHook(keys string) string { return withRoll("hooks:\n    beforeNode: [{" + keys + "}]") }

func hookCases() map[string]problemCase {
	return map[string]problemCase{
		"a list":          {withRoll("hooks: []"), "17:3: roll.hooks: must be a section with keys, not a list"},
		"unknown point":   {withRoll("hooks: {beforeNodes: []}"), `17:11: roll.hooks.beforeNodes: unknown key, did you mean "beforeNode"?`},
		"one hook":        {withRoll("hooks: {beforeNode: {command: [a]}}"), "17:11: roll.hooks.beforeNode: must be a list, not a section"},
		"no command":      {withHook("timeout: 1m"), "18:18: roll.hooks.beforeNode[0].command: required"},
		"empty command":   {withHook("command: []"), "18:19: roll.hooks.beforeNode[0].command: names no program: write it like [./drain-lb.sh, argument]"},
		"blank command":   {withHook("command: [' ']"), "18:19: roll.hooks.beforeNode[0].command: names no program: write it like [./drain-lb.sh, argument]"},
		"command as text": {withHook("command: ./a.sh"), "18:19: roll.hooks.beforeNode[0].command: must be a list, not text"},
		"no time at all":  {withHook("command: [a], timeout: 0s"), "18:33: roll.hooks.beforeNode[0].timeout: must be longer than 0"},
		"no unit":         {withHook("command: [a], timeout: 10"), `18:33: roll.hooks.beforeNode[0].timeout: "10" is not a duration: write it like 30s, 10m or 1h30m`},
		"two lines":       {withHook(`command: [a], description: "a\nb"`), "18:33: roll.hooks.beforeNode[0].description: has more than one line"},
		"no name":         {withHook(`command: [a], description: ""`), "18:33: roll.hooks.beforeNode[0].description: is empty: give it a value or remove it"},
		"an environment":  {withHook("command: [a], env: {A: b}"), "18:33: roll.hooks.beforeNode[0].env: must be a list, not a section"},
		"a value":         {withHook("command: [a], env: [A=b]"), `18:39: roll.hooks.beforeNode[0].env[0]: "A=b" is not the name of an environment variable: list only names, not values`},
		"recast's token":  {withHook("command: [a], env: [A, PROXMOX_VE_API_TOKEN]"), "18:42: roll.hooks.beforeNode[0].env[1]: recast passes its Proxmox token to no program: give this one its own token"},
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	got, err := config.Parse("recast.yaml", []byte(small+`roll:
  hooks:
    beforeRun:
      - {description: freeze deployments, command: [./freeze.sh, "on"], timeout: 5m}
      - command: [date]
    afterNode: [{command: [ceph, osd, unset, noout]}]
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	minute := config.Duration(time.Minute)
	want := config.Hooks{
		BeforeRun: []config.Hook{
			{Description: "freeze deployments", Command: []string{"./freeze.sh", "on"}, Timeout: 5 * minute}, {Command: []string{"date"}, Timeout: minute},
		},
		AfterNode: []config.Hook{{Command: []string{"ceph", "osd", "unset", "noout"}, Timeout: minute}},
	}
	if diff := cmp.Diff(want, got.Roll.Hooks); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	out, err := got.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := config.Parse("again.yaml", out, config.Options{})
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if diff := cmp.Diff(want, again.Roll.Hooks); diff != "" {
		t.Errorf("written and read again: -want +got\n%s", diff)
	}
}

// A program that is given by path must exist, relative to recast.yaml.
func TestHookProgramIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recast.yaml")
	if err := os.WriteFile(path, []byte(withHook("command: [./a.sh]")+"    afterRun: [{command: [sh]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(path), "a.sh")
	_, err := config.Load(path, config.Options{})
	if want := path + ":18:19: roll.hooks.beforeNode[0].command: no such file: " + program; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("err = %v, want %q", err, want)
	}
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path, config.Options{}); err != nil && strings.Contains(err.Error(), "hooks") {
		t.Error(err)
	}
}
