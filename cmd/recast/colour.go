package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// colourful adds --color, which overrides the environment. It sets the environment
// variables, so hooks and gates that recast starts follow it too.
func colourful(root *cobra.Command) {
	var when string
	root.PersistentFlags().StringVar(&when, "color", "auto", "`when` to print colours: auto, always or never")
	before := root.PersistentPreRunE
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if err := setColours(when); err != nil {
			return err
		}
		return before(c, args)
	}
}

func setColours(when string) error {
	switch when {
	case "auto":
		return nil
	case "always":
		if err := os.Unsetenv("NO_COLOR"); err != nil {
			return err
		}
		return os.Setenv("CLICOLOR_FORCE", "1")
	case "never":
		return os.Setenv("NO_COLOR", "1")
	}
	return errUsage{fmt.Errorf("--color %q: use auto, always or never", when)}
}
