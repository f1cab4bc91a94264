package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/words"
)

// completeRuns completes the IDs of past runs, each with its command and result.
func (g *globals) completeRuns(_ *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	runs, _ := p.Runs().All(thisProcess()) // runs that can't be read are not offered
	for _, r := range runs {
		ids = append(ids, cobra.CompletionWithDesc(r.ID, r.Command()+", "+r.Result))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeNodes completes the names of nodes, of which an argument names each once.
func (g *globals) completeNodes(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, n := range p.Config.Nodes {
		if !slices.Contains(args, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// choice is a flag that has one of several values.
type choice struct {
	chosen *string
	of     []string
}

// oneOf makes such a flag. The first value is its default.
func oneOf(chosen *string, of ...string) choice {
	*chosen = of[0]
	return choice{chosen, of}
}

func (c choice) Type() string   { return strings.Join(c.of, "|") }
func (c choice) String() string { return *c.chosen }

func (c choice) Set(value string) error {
	if !slices.Contains(c.of, value) {
		return fmt.Errorf("use one of %s%s", strings.Join(c.of, ", "), words.DidYouMean(value, c.of))
	}
	*c.chosen = value
	return nil
}

// outputFlag adds -o.
func outputFlag(c *cobra.Command, out *string, formats ...string) {
	c.Flags().VarP(oneOf(out, formats...), "output", "o", "output `format`: "+strings.Join(formats, ", "))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that there is not
}
