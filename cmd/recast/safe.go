package main

import (
	"errors"

	"github.com/spf13/cobra"
)

const reads = "nothing was changed: this command only reads"

// untouched says what is safe when a command has failed and its error has no text of
// its own for that. A test checks that every command is listed.
var untouched = map[string]string{
	"recast":             "nothing was started",
	"recast adopt":       "nothing in the cluster was changed, and no existing file is overwritten without --force",
	"recast backup":      "the cluster is as it was; a snapshot appears under its name only once it is verified",
	"recast bootstrap":   "etcd begins once, on the named control plane, and nothing of another cluster is touched: run the same command again to go on",
	"recast config":      reads,
	"recast docs":        "no cluster was touched",
	"recast doctor":      reads,
	"recast drift":       reads,
	"recast lab":         "nothing outside the lab was touched",
	"recast lock":        "no node and no VM was touched; recast.lock is unchanged or completely written",
	"recast operator":    reads,
	"recast plan":        reads,
	"recast prune":       "the list above says what is kept and why; nothing is freed that a node, a rollback or an unfinished replacement needs",
	"recast publish":     "no node and no VM was touched; an ISO counts as published only once size and checksum are right",
	"recast rebuild":     "no disk was freed: recast status shows where each one is; etcd begins once, on the named control plane",
	"recast remove":      "no disk was freed but those of a node that --free names: recast status shows where each one is",
	"recast restore":     "no existing data of etcd is ever overwritten, and the snapshot is only read",
	"recast roll":        "no persistent disk was freed: recast status shows where each one is",
	"recast runbook":     reads,
	"recast status":      reads,
	"recast ui":          reads,
	"recast undo":        "no disk was freed: recast status shows where each one is",
	"recast upgrade-k8s": "no VM and no disk was touched; upgraded components stay upgraded",
	"recast version":     reads,
	"recast completion":  reads,
	"recast help":        reads,
	"recast environment": reads,
	"recast exit-codes":  reads,
	"recast history":     reads,
	"recast init":        "nothing in the cluster was changed, and no existing file is overwritten without --force",

	"recast support-bundle": reads,
}

// safeAfter says what is safe after c, or the nearest parent in the list, has failed.
// The kind of error does not matter: a certificate can expire in the middle of a run.
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
