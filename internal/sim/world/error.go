package world

import "fmt"

// Error is an error answer of the Proxmox API: status, message and per-parameter errors.
type Error struct {
	Status  int
	Message string
	Params  map[string]string // errors of single parameters, for status 400
}

func (e *Error) Error() string { return e.Message }

// failf is an error with the status that Proxmox uses for everything except bad parameters
// and missing privileges, "not found" included.
func failf(format string, args ...any) error {
	return &Error{Status: 500, Message: fmt.Sprintf(format, args...)}
}

// BadParam is Proxmox's answer to one invalid parameter.
func BadParam(name, format string, args ...any) error {
	return badParams(map[string]string{name: fmt.Sprintf(format, args...)})
}

func badParams(params map[string]string) error {
	return &Error{Status: 400, Message: "Parameter verification failed.", Params: params}
}

func denied(path, privilege string) error {
	return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (%s, %s)", path, privilege)}
}

func noConfigFile(host string, id int) error {
	return failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, id)
}
