package config

import (
	"fmt"
	"strings"
)

// Hooks is the section "roll.hooks": programs that run at points of a run, each list from first to last.
type Hooks struct {
	// BeforeRun is run once a plan is confirmed, before any node is touched.
	BeforeRun []Hook `yaml:"beforeRun,omitempty"`
	// AfterRun is run at the end of whatever beforeRun began, also where that has failed or was interrupted; RECAST_OUTCOME says which.
	AfterRun []Hook `yaml:"afterRun,omitempty"`
	// BeforeBatch is run before the first node of each part of the plan: unfinished, reset, canary, control-planes, workers.
	BeforeBatch []Hook `yaml:"beforeBatch,omitempty"`
	// AfterBatch is run once all nodes of such a part are done.
	AfterBatch []Hook `yaml:"afterBatch,omitempty"`
	// BeforeNode is run before a node is taken out, after the gates.
	BeforeNode []Hook `yaml:"beforeNode,omitempty"`
	// AfterNode is run once a node is back, healthy and schedulable, before the gates are asked again.
	AfterNode []Hook `yaml:"afterNode,omitempty"`
}

// Hook is one program of "roll.hooks". One that does not end with 0 stops the roll.
type Hook struct {
	// Description is what plans and reports call the hook. Default: its command.
	Description string `yaml:"description,omitempty"`
	// Command is a program and its arguments. It runs in the directory of this file, with RECAST_HOOK, RECAST_NODE and more in its environment (docs/notes/hooks.md lists them), and of recast's own environment only what env names beside PATH, HOME and other variables that hold no secret.
	Command []string `yaml:"command" jsonschema:"required"`
	// Env names variables of recast's environment that the command gets, such as SLACK_TOKEN; PROXMOX_VE_API_TOKEN can't be one.
	Env []string `yaml:"env,omitempty"`
	// Timeout is how long it may run; then it is ended with all that it has started. Default: 1m.
	Timeout Duration `yaml:"timeout"`
}

// hookList is the hooks of one point and where they stand in the file.
type hookList struct {
	path  string
	hooks []Hook
}

func (h *Hooks) lists() []hookList {
	return []hookList{
		{"roll.hooks.beforeRun", h.BeforeRun},
		{"roll.hooks.afterRun", h.AfterRun},
		{"roll.hooks.beforeBatch", h.BeforeBatch},
		{"roll.hooks.afterBatch", h.AfterBatch},
		{"roll.hooks.beforeNode", h.BeforeNode},
		{"roll.hooks.afterNode", h.AfterNode},
	}
}

func (k checker) hooks() {
	for _, list := range k.c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			k.hook(fmt.Sprintf("%s[%d]", list.path, i), h)
		}
	}
}

func (k checker) hook(path string, h Hook) {
	if k.given(path+".timeout") && h.Timeout <= 0 {
		k.add(path+".timeout", "must be longer than nothing")
	}
	k.notEmpty(path+".description", h.Description)
	if strings.ContainsAny(h.Description, "\r\n") {
		k.add(path+".description", "has more than one line")
	}
	if k.given(path+".command") && (len(h.Command) == 0 || strings.TrimSpace(h.Command[0]) == "") {
		k.add(path+".command", "names no program: write it like [./drain-lb.sh, argument]")
	}
	k.env(path, h.Env)
}

// env checks the names of variables that a program gets.
func (k checker) env(path string, names []string) {
	for i, name := range names {
		at := fmt.Sprintf("%s.env[%d]", path, i)
		switch {
		case name == "PROXMOX_VE_API_TOKEN":
			k.add(at, "recast hands its Proxmox token on to no program: give this one a token of its own")
		case !matches(name, `[A-Za-z_][A-Za-z0-9_]*`):
			k.add(at, "%s is no name of an environment variable: its value stays in the environment", quote(name))
		}
	}
}
