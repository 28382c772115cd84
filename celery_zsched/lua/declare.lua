-- declare: make a queue known with the rules that its messages are under, or only look at it.
-- KEYS: leases claims bodies parked dead reasons notes marks bell watch rules timelines...
-- ARGV: how ('1': change nothing; '2': leave the rules that stand alone; '0': these are its rules), then for '0' pairs
--       name, value; an empty value takes the rule away
--       expires         milliseconds without a consumer after which the queue and all it holds go
--       message_ttl     microseconds after its due moment that a message is wanted
--       max_length      how many due messages are kept; the oldest go
--       delivery_limit  deliveries without an end after which a message is set aside
--       auto_delete     '1': the queue goes with its last consumer
--       What a queue that has lived for ever holds was given to it on those terms: while it holds anything it takes on
--       neither expires nor auto_delete.
-- RETURNS: whether it was known or holds anything, how many messages are ready, how many it holds that keep it from
--          expires and auto_delete ('0': nothing does), then the five rules as they stood ('' for what there is none of,
--          or as nobody had declared it), and the five as they stand
-- RULES: 2, 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, marks, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
local passive, bare = ARGV[1] == '1', ARGV[1] == '2'
local NAMES = {'expires', 'message_ttl', 'max_length', 'delivery_limit', 'auto_delete'}
-- @include clock life

local known = call('EXISTS', rules) == 1 or call('EXISTS', bodies) == 1
local declared = call('HEXISTS', rules, 'declared') == 1
local before, withheld = call('HMGET', rules, unpack(NAMES)), 0

local function set_rules()
  local lives = (life_of(rules) or -1) >= 0
  for at = 2, #ARGV, 2 do
    local name, value = ARGV[at], ARGV[at + 1]
    if value ~= '' and (name == 'expires' or name == 'auto_delete') and not lives and call('EXISTS', bodies) == 1 then
      withheld, value = call('HLEN', bodies), ''
    end
    if value == '' then
      call('HDEL', rules, name)
    else
      call('HSET', rules, name, value)
    end
  end
  if call('HEXISTS', rules, 'expires') == 1 or call('HEXISTS', rules, 'max_length') == 1 then
    call('HSET', rules, 'special', '1') -- publish.lua leaves such a queue to put.lua
  else
    call('HDEL', rules, 'special')
  end
end

if not passive then
  call('HDEL', rules, 'declared') -- first, since it takes no memory (see claim.lua)
  if not bare then
    set_rules()
  elseif not declared then
    call('HDEL', rules, 'expires', 'special') -- the life that a reply gave to a queue of nobody's (see put.lua)
  end
  call('HSET', rules, 'declared', stamp(now))
  local life = tonumber(call('HGET', rules, 'expires') or '')
  if life then
    live_on(life)
  else
    for _, key in ipairs(KEYS) do
      if key ~= bell and key ~= watch then
        call('PERSIST', key)
      end
    end
  end
end
local ready = 0
for _, key in ipairs(timelines) do
  ready = ready + call('ZCOUNT', key, '-inf', stamp(now))
end
local answer = {known and 1 or 0, ready, withheld}
local after = call('HMGET', rules, unpack(NAMES))
for position = 1, #NAMES do
  answer[#answer + 1] = declared and before[position] or ''
end
for position = 1, #NAMES do
  answer[#answer + 1] = after[position] or ''
end
return answer
