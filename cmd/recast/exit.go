package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/spf13/cobra"
)

// Exit codes are part of the command-line contract; recast --help shows them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitDiffers     = 2
	exitConfig      = 3
	exitRefused     = 4
	exitClaimed     = 5
	exitInterrupted = 130
)

const exitHelp = `Exit codes:
  0    done, in sync
  1    failed: unreachable, TLS, a task, a timeout; drift: a node could not be read
  2    changes (plan --exit-code, lock --check) or drift found
  3    bad usage or configuration
  4    refused as unsafe
  5    another run holds the claim
  130  interrupted, or not confirmed`

// errDiffers ends a command with exit code 2. The differences are on stdout already.
var errDiffers = errors.New("differs")

// errUnread ends drift with exit code 1.
var errUnread = errors.New("not every node could be read")

// errUsage marks errors about flags and arguments. Their kind is Config, like that of a bad file.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return fault.As(fault.Config, e.error) }

// errOpening marks an error from reading the configuration: the command did nothing yet.
type errOpening struct{ error }

func (e errOpening) Unwrap() error { return e.error }

// exit prints an error of c: what happened, what is safe, what to type next and where
// to read more. It returns the exit code.
func (s *streams) exit(c *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errDiffers) {
		return exitDiffers
	}
	code := exitCodeOf(err)
	if code == exitInterrupted && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted: %w", err) // otherwise the cancelled operation looks like a failure
	}
	t := ui.Trouble{Err: err, Safe: safeAfter(c, err), Runbook: whereRunbook}
	_ = ui.WriteTrouble(s.err, t) // there is nowhere to report that
	return code
}

// whereRunbook says where to read the page of a code.
func whereRunbook(code fault.Code) string {
	return fmt.Sprintf("recast runbook %s (%s)", code, runbooks.URL(string(code)))
}

func exitCodeOf(err error) int {
	switch fault.KindOf(err) {
	case fault.Config:
		return exitConfig
	case fault.Refused:
		return exitRefused
	case fault.Claimed:
		return exitClaimed
	case fault.Interrupted:
		return exitInterrupted
	case fault.Failed:
		if errors.Is(err, context.Canceled) {
			return exitInterrupted
		}
	}
	return exitFailed
}

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

func newRunbookCmd(s *streams) *cobra.Command {
	var web bool
	c := &cobra.Command{
		Use: "runbook [CODE]", Short: "Show what to do about an error, by its code",
		Long: `Print the page of an error code: what you see, what it means, what is safe now, how to
check, what to do and, if disks are involved, how to undo it by hand without recast.
Every error ends with its code; logs and JSON have it as "code". Without a code, list
all codes. The pages are built into this program, so this works offline.`,
		Example: `  recast runbook
  recast runbook drain-blocked
  recast runbook parked-half | less`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return codeNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listRunbooks(s)
			}
			page, found := runbooks.Page(args[0])
			if !found {
				return fault.WithHint(errUsage{fmt.Errorf("no runbook %q", args[0])}, "recast runbook lists them")
			}
			if web {
				page = runbooks.URL(args[0]) + "\n"
			}
			_, err := fmt.Fprint(s.out, page)
			return err
		},
	}
	c.Flags().BoolVar(&web, "url", false, "print only the URL of the page")
	return c
}

func listRunbooks(s *streams) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, code := range fault.AllCodes() {
		fmt.Fprintf(w, "%s\t%s\n", code, runbooks.Title(string(code)))
	}
	return w.Flush()
}

func codeNames() []string {
	names := make([]string, 0, len(fault.AllCodes()))
	for _, code := range fault.AllCodes() {
		names = append(names, string(code))
	}
	return names
}
