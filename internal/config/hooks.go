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
	// Command is a program and its arguments. It runs in the directory of this file, with RECAST_HOOK, RECAST_NODE and more in its environment (docs/notes/hooks.md lists them), and without PROXMOX_VE_API_TOKEN.
	Command []string `yaml:"command" jsonschema:"required"`
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
}
