// Command disk does with the disk image of a lock what a build does with the boot ISO: it
// downloads it from the Image Factory, and compares it with the lock. The test with the
// real factory runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/factory"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/schematics"
)

const usage = `usage: disk fetch LOCK SCHEMATIC FACTORY-URL FILE
       disk verify LOCK SCHEMATIC EXTENSIONS FILES`

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
	if len(args) < 4 {
		return errors.New(usage)
	}
	lock, err := schematics.ReadLock(args[1])
	if err != nil {
		return err
	}
	e, known := lock.Schematics[args[2]]
	switch {
	case !known:
		return fmt.Errorf("%s has no schematic %s", args[1], args[2])
	case args[0] == "fetch" && len(args) == 5:
		return fetch(ctx, lock, e, args[3], args[4])
	case args[0] == "verify" && len(args) > 4:
		return verifyAll(ctx, lock, e, args[3], args[4:])
	}
	return errors.New(usage)
}

func note(text string) { fmt.Fprintln(os.Stderr, text) }

// fetch downloads the disk image of a schematic.
func fetch(ctx context.Context, lock schematics.Lock, e schematics.Locked, url, to string) error {
	c, err := factory.New(factory.Options{URL: url})
	if err != nil {
		return err
	}
	defer c.Close()
	body, size, err := c.Image(ctx, images.DiskImage, images.RequestOf(lock, e), note)
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, body)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes, %d were announced\n", c.ImageURL(images.DiskImage, images.RequestOf(lock, e)), n, size)
	return nil
}

// verify compares the lock's installer with the lock, and disk images with both. It
// prints what it found of each. extensions is where the official extensions are:
// images.extensions of a configuration.
func verifyAll(ctx context.Context, lock schematics.Lock, e schematics.Locked, extensions string, files []string) error {
	r, err := registry.New(registry.Options{Extensions: extensions + "/extensions"})
	if err != nil {
		return err
	}
	v := verify.New(r, os.TempDir())
	defer v.Close()
	installer, err := r.Extract(ctx, e.Installer, lock.Arch)
	if err != nil {
		return err
	}
	defer installer.Close()
	boot, err := v.Installer(ctx, lock, e, installer, note)
	if err != nil {
		return err
	}
	for _, name := range files {
		size, err := verifyOne(ctx, v, lock, e, boot, name)
		if err != nil {
			fmt.Printf("%s: refused: %v\n", name, err)
			continue
		}
		fmt.Printf("%s: as locked: a disk of %d bytes\n", name, size)
	}
	return nil
}

func verifyOne(ctx context.Context, v *verify.Verifier, lock schematics.Lock, e schematics.Locked, boot verify.Boot, name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return v.Disk(ctx, lock, e, f, info.Size(), boot, note)
}
