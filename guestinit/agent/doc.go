// Package agent is the server inside the guest.
package agent
