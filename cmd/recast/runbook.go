package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
)

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
