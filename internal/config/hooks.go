package config

import (
	"fmt"
	"strings"
)

// Hooks is the section "roll.hooks": programs that run at points of a run, each list from first to last.
type Hooks struct {
	// BeforeRun runs after a plan is confirmed, before any node is touched.
	BeforeRun []Hook `yaml:"beforeRun,omitempty"`
	// AfterRun runs at the end of every run for which beforeRun was started, even if that has failed or was interrupted; RECAST_OUTCOME says which.
	AfterRun []Hook `yaml:"afterRun,omitempty"`
	// BeforeBatch runs before the first node of each part of the plan: unfinished, reset, canary, control-planes, workers.
	BeforeBatch []Hook `yaml:"beforeBatch,omitempty"`
	// AfterBatch runs when all nodes of such a part are finished.
	AfterBatch []Hook `yaml:"afterBatch,omitempty"`
	// BeforeNode runs before a node is taken down, after the gates.
	BeforeNode []Hook `yaml:"beforeNode,omitempty"`
	// AfterNode runs when a node is back, healthy and schedulable, before the gates are checked again.
	AfterNode []Hook `yaml:"afterNode,omitempty"`
}

// Hook is one program of "roll.hooks". If it does not exit 0, the roll stops.
type Hook struct {
	// Description is the name of the hook in plans and reports. Default: its command.
	Description string `yaml:"description,omitempty"`
	// Command is a program and its arguments. It runs in the directory of this file, with RECAST_HOOK, RECAST_NODE and more in its environment (docs/notes/hooks.md lists them). Of recast's own environment it gets only PATH, HOME, other variables without secrets, and what env names.
	Command []string `yaml:"command" jsonschema:"required"`
	// Env names variables of recast's environment to pass to the command, such as SLACK_TOKEN; PROXMOX_VE_API_TOKEN is not allowed.
	Env []string `yaml:"env,omitempty"`
	// Timeout is how long it may run; then it is killed with all processes that it started. Default: 1m.
	Timeout Duration `yaml:"timeout"`
}

// hookList is one list of hooks and its path in the file.
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
		k.add(path+".timeout", "must be longer than 0")
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

// env checks the names of the variables to pass to a program.
func (r *report) env(path string, names []string) {
	for i, name := range names {
		at := fmt.Sprintf("%s.env[%d]", path, i)
		switch {
		case name == "PROXMOX_VE_API_TOKEN":
			r.add(at, "recast passes its Proxmox token to no program: give this one its own token")
		case !matches(name, `[A-Za-z_][A-Za-z0-9_]*`):
			r.add(at, "%s is not the name of an environment variable: list only names, not values", quote(name))
		}
	}
}
