// Package hmac is RFC-72's engine for the rotation of the secrets that sign webhooks: a new secret is made for a consumer or a
// producer, those who have to know are told, the former secret stays valid for a while and is then deleted.
//
// An instance is a signing subject, as text: consumer:{channelId}/{consumerId} or producer:{producerId}. The context's own instance
// stands for all subjects whose secret is due, and each of them gets a message, and so a run, of its own.
//
// No secret leaves the storage: steps, and so the workflow's tables, the history, notifications and logs have its id alone.
package hmac
