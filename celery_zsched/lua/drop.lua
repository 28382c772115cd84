-- drop: delete a queue with all it holds. The high-water marks of firings stay: they are no messages.
-- KEYS: leases claims bodies parked dead reasons notes bell watch rules timelines...
-- ARGV: if_empty ('1': only if nothing is ready), if_unused ('1': only if nothing is leased), leaving ('1': a consumer
--       of a queue that goes with its last one leaves, and the queue goes only if he is that; '2': the queue is for
--       broadcasts, which need nothing here, and goes if it has no consumer, holds nothing and would go by itself)
-- RETURNS: how many messages were ready (-1 if the queue stays), the moment at which a binding that was renewed now would
--          lapse ('' where none does), the bindings that it had
-- RULES: 1, 2, 4 (every token is void from then on), 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local timelines = {unpack(KEYS, 11)}
local if_empty, if_unused, leaving, unmade = ARGV[1] == '1', ARGV[2] == '1', ARGV[3] == '1', ARGV[3] == '2'
-- @include clock bound

if leaving and (call('EXISTS', rules) == 0 or call('HINCRBY', rules, 'consumers', -1) > 0) then
  return {-1, ''}
end
if unmade then
  local ruled = call('HMGET', rules, 'auto_delete', 'consumers')
  if not ruled[1] or tonumber(ruled[2] or '0') > 0 or call('EXISTS', bodies) == 1 then
    return {-1, ''}
  end
end
local ready = 0
for _, key in ipairs(timelines) do
  ready = ready + call('ZCOUNT', key, '-inf', stamp(now))
end
if (if_empty and ready > 0) or (if_unused and call('EXISTS', leases) == 1) then
  return {-1, ''}
end
local answer = bindings_of(rules)
local expires = tonumber(call('HGET', rules, 'expires') or '')
table.insert(answer, 1, ready)
table.insert(answer, 2, expires and stamp(now + 2000 * expires) or '') -- a binding lives twice as long (exchanges.py)
for _, key in ipairs(KEYS) do
  call('UNLINK', key)
end
return answer
