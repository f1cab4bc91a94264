package main

import (
	"errors"

	"github.com/spf13/cobra"
)

const reads = "nothing was changed: this command only reads"

// untouched says what is safe when a command has failed and its error does not say
// it better. A test sees that every command is here.
var untouched = map[string]string{
	"recast":             "nothing was begun",
	"recast backup":      "the cluster is as it was; a snapshot appears under its name only once it is verified",
	"recast build":       "no node and no VM was touched; what is built already stays, and recast.lock is never half written",
	"recast docs":        "no cluster was touched",
	"recast doctor":      reads,
	"recast drift":       reads,
	"recast lab":         "nothing outside the lab was touched",
	"recast lock":        "no node and no VM was touched; recast.lock is as it was, or written whole",
	"recast plan":        reads,
	"recast provenance":  reads,
	"recast prune":       "what stays and why is listed above; nothing is freed that a node, a rollback or an unfinished replacement needs",
	"recast publish":     "no node and no VM was touched; an ISO counts as published only once size and checksum are right",
	"recast recover":     "no disk was freed: recast status shows where each is",
	"recast restore":     "no existing data of etcd is ever overwritten, and the snapshot is only read",
	"recast roll":        "no persistent disk was freed: recast status shows where each is",
	"recast rollback":    "no disk was freed: recast status shows where each is",
	"recast runbook":     reads,
	"recast status":      reads,
	"recast upgrade-k8s": "no VM and no disk was touched; what is upgraded already stays so",
	"recast version":     reads,
	"recast completion":  reads,
	"recast help":        reads,
	"recast history":     reads,
	"recast init":        "nothing in the cluster was changed, and no file that was there is overwritten unasked",
	"recast report":      reads,

	"recast support-bundle": reads,
}

// safeAfter is what holds once a command has failed, or the one that it is part of.
// What kind of error it is tells nothing of that: a certificate expires in the
// middle of a run.
func safeAfter(c *cobra.Command, err error) string {
	_, usage := errors.AsType[errUsage](err)
	_, opening := errors.AsType[errOpening](err)
	if usage || opening {
		return "nothing was changed"
	}
	for ; c != nil; c = c.Parent() {
		if text, known := untouched[c.CommandPath()]; known {
			return text
		}
	}
	return ""
}
