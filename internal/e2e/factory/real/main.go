// Command real is the Image Factory and the Talos imager in one program, so that their
// large common part is linked once.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	roles := map[string]func(context.Context, []string) error{"factory": serveFactory, "imager": runImager}
	if len(args) == 0 || roles[args[0]] == nil {
		return fmt.Errorf("usage: real factory|imager …")
	}
	return roles[args[0]](ctx, args[1:])
}
