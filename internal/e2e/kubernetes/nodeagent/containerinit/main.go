// Command containerinit is the first process of a container until it becomes the
// container's program. It reads a jail.Spec from file descriptor 3 and writes to 4
// what went wrong, if anything did. Package cri starts it.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
)

func main() {
	runtime.LockOSThread() // an identity is a thread's, and the one that executes the program counts
	spec, report := os.NewFile(3, "spec"), os.NewFile(4, "report")
	fmt.Fprint(report, jail.Become(spec, report)) // it returns only an error
	os.Exit(1)
}
