// Command figures prints how large the house is: lines, functions, files, rooms, and what makes
// it harder to keep than its size says. It is run at the top of the repository:
//
//	figures
//	product: lines      118842
//	…
//
// The product is what recast and recast-operator are built of, without the simulator that
// recast lab carries, and without generated files. Tests are files named _test.go, the simulator is
// internal/sim without its tests.
package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		fmt.Fprintln(stderr, "error: figures takes no arguments")
		return 3
	}
	counted, err := count(".")
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, f := range counted.figures() {
		fmt.Fprintf(w, "%d\t  %s\n", f.value, f.name)
	}
	if err := w.Flush(); err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}
