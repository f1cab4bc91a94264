// Command containerinit is the first process of a container until it becomes the
// container's program, or runs a program in a container. It reads a jail.Spec from file
// descriptor 3 and writes to 4 what went wrong, if anything did. Package cri starts it.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
)

func main() {
	runtime.LockOSThread() // identity and namespaces are a thread's
	report := os.NewFile(4, "report")
	code, err := run(os.NewFile(3, "spec"), report)
	if err != nil {
		fmt.Fprint(report, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(spec, report *os.File) (int, error) {
	s, err := jail.ReadSpec(spec)
	if err != nil {
		return 0, err
	}
	if s.Join != 0 {
		return s.Exec(report)
	}
	return 0, s.Become(report)
}
