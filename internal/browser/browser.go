// Package browser shows files in the user's web browser.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
)

// Here says whether the user would see a browser that opens on this machine.
func Here() bool {
	if os.Getenv("SSH_CONNECTION") != "" || os.Getenv("CI") != "" {
		return false
	}
	return runtime.GOOS == "darwin" || os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != ""
}

// Opener returns the program that opens a file as a double click does.
func Opener() string {
	if runtime.GOOS == "darwin" {
		return "open"
	}
	return "xdg-open"
}

// showWithin is how long to wait for an opener to fail. An opener that still runs then is the browser itself.
const showWithin = 3 * time.Second

// desktopEnv are the variables that a program needs to find a browser and its screen.
var desktopEnv = []string{
	"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "BROWSER", "DESKTOP_SESSION", "KDE_*", "GNOME_*", "WSL_*", "WSLENV",
}

// Show opens a file or URL for the user with an Opener. A browser that Show starts keeps running, and Ctrl-C for
// recast does not end it: the browser is in its own process group and holds no pipe of ours.
func Show(ctx context.Context, opener, file string) error {
	c := exec.Command(opener, file)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Env = command.Environ(os.Environ(), desktopEnv)
	err := c.Start()
	if err == nil {
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err = <-ended:
		case <-time.After(showWithin):
		case <-ctx.Done():
		}
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("open %s: %s: %w", file, opener, err), "the file is written: open it by hand, or leave --open out")
	}
	return nil
}
