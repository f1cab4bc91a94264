// Command fleet serves the operator's pages of objects in a file, and of those that it reads from stdin later, as YAML documents, at a
// time that does not pass. It prints their address. The test with a real browser runs it.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/recast-sh/recast/internal/operator/page"
	"github.com/recast-sh/recast/internal/operator/page/pagetest"
	"github.com/recast-sh/recast/internal/web/frame"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: fleet OBJECTS TIME")
	}
	now, err := time.Parse(time.RFC3339, args[1])
	if err != nil {
		return err
	}
	objects, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	store, err := pagetest.New()
	if err == nil {
		err = store.Put(ctx, bytes.NewReader(objects))
	}
	if err != nil {
		return err
	}
	site, err := page.New(store, netip.AddrPort{}, "v0.0.0")
	if err != nil {
		return err
	}
	site.Now = func() time.Time { return now }
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/\n", l.Addr())
	go func() {
		if err := store.Put(ctx, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
	}()
	return frame.Serve(ctx, l, site.Handler())
}
