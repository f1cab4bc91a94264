// Package lab is recast lab: commands that run a simulated datacentre and do things in one that runs. The
// datacentre itself is package sim.
package lab

import (
	"context"
	"io"
)

// Program is what the commands need of the program that they belong to.
type Program struct {
	Out, Err io.Writer
	// Run runs another command of recast.
	Run func(ctx context.Context, args ...string) error
	// Differs is what Run returns from a command that exits with 2.
	Differs error
	// Lock locks the schematics of a recast.yaml, and returns each as YAML by its name.
	Lock func(ctx context.Context, config string) (map[string]string, error)
}
